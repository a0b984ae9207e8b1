// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/json_report.h"

namespace zckpt::cli {

Json to_json(const Finding& finding) {
  Json json{{"code", finding.code},
            {"severity", std::string(to_string(finding.severity))},
            {"message", finding.message}};
  if (!finding.file.empty()) json["file"] = finding.file;
  if (finding.rank) json["rank"] = *finding.rank;
  if (!finding.tensor.empty()) json["tensor"] = finding.tensor;
  if (finding.offset) json["offset"] = *finding.offset;
  return json;
}

Json to_json(const std::vector<Finding>& findings) {
  Json array = Json::array();
  for (const Finding& finding : findings) array.push_back(to_json(finding));
  return array;
}

Json to_json(const CheckpointFacts& facts) {
  Json json{{"folder", facts.folder},
            {"framework", facts.framework},
            {"layout", facts.layout}};
  if (facts.stage) json["stage"] = *facts.stage;
  if (facts.world_size != 0) json["world_size"] = facts.world_size;
  if (facts.step) json["step"] = *facts.step;
  if (!facts.deepspeed_version.empty()) {
    json["deepspeed_version"] = facts.deepspeed_version;
  }
  if (facts.dtype) json["dtype"] = std::string(short_name(*facts.dtype));
  if (facts.master_dtype) {
    json["master_dtype"] = std::string(short_name(*facts.master_dtype));
  }
  return json;
}

Json document(const std::string& verb) {
  return Json{{"zckpt", 1}, {"verb", verb}};
}

Json failure_json(const std::string& verb, const Error& error) {
  Json json = document(verb);
  Json& detail = json["error"];
  detail = Json{{"code", std::string(to_string(error.code()))},
                {"message", error.message()}};
  if (!error.file().empty()) detail["file"] = error.file();
  if (!error.tensor().empty()) detail["tensor"] = error.tensor();
  if (error.offset()) detail["offset"] = *error.offset();
  if (!error.findings().empty()) json["findings"] = to_json(error.findings());
  return json;
}

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace zckpt::cli
