// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/recognise.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/memory_source.h"
#include "support/torch_archive.h"

namespace zckpt::test {
namespace {

FileForm form_of(const std::string& bytes) {
  return recognise(MemorySource(bytes));
}

std::string with_header(std::string header) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + "data";
}

TEST(Recognise, TorchFiles) {
  const TorchArchive archive;
  EXPECT_EQ(form_of(archive.bytes()), FileForm::TorchZip);
  EXPECT_EQ(form_of(archive.bytes().substr(0, 300)), FileForm::TorchZipTorn);
  EXPECT_EQ(form_of("PK\x03\x04"), FileForm::TorchZipTorn);
  EXPECT_EQ(form_of(archive.legacy_bytes()), FileForm::TorchLegacy);
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  EXPECT_EQ(form_of(tar), FileForm::TorchTar);
}

TEST(Recognise, FilesWithJsonHeaders) {
  EXPECT_EQ(form_of(with_header("{}")), FileForm::Safetensors);
  EXPECT_EQ(form_of(with_header(R"({"a":{"dtype":"F32"}})")),
            FileForm::Safetensors);
  // Cut off inside the header.
  EXPECT_EQ(form_of(with_header("{}" + std::string(99, ' ')).substr(0, 20)),
            FileForm::Safetensors);
  EXPECT_EQ(form_of(with_header(R"({"a|b": {"dtype": "torch.float32"}})")),
            FileForm::DataStates);
  EXPECT_EQ(form_of(with_header("{" + std::string(200'000, ' ') +
                                R"("datastates_metadata": {}})")),
            FileForm::DataStates);
  EXPECT_EQ(form_of(with_header("{" + std::string(200'000, ' ') + "}")),
            FileForm::Safetensors);
}

TEST(Recognise, OtherFiles) {
  EXPECT_EQ(form_of(""), FileForm::Empty);
  EXPECT_EQ(form_of(pickle(Py::dict())), FileForm::Pickle);
  EXPECT_EQ(form_of("{\"metadata\": {\"total_size\": 1}}"), FileForm::Json);
  EXPECT_EQ(form_of(" \n[1]"), FileForm::Json);
  EXPECT_EQ(form_of("12345678{"), FileForm::Unknown);
  EXPECT_EQ(form_of("\x80\x09"), FileForm::Unknown);
  EXPECT_EQ(form_of("hello"), FileForm::Unknown);
  EXPECT_EQ(form_of(std::string(600, '\0')), FileForm::Unknown);
}

TEST(Recognise, EveryFormHasADescription) {
  for (int i = 0; i <= static_cast<int>(FileForm::Unknown); ++i) {
    EXPECT_GT(std::string(describe(static_cast<FileForm>(i))).size(), 5);
  }
}

}  // namespace
}  // namespace zckpt::test
