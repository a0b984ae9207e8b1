// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/app.h"

#include <algorithm>
#include <csignal>
#include <new>

#include "base/text.h"
#include "cli/json_report.h"
#include "cli/verbs.h"
#include "zckpt/error.h"

namespace zckpt::cli {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitFailed = 3;
constexpr int kExitSignal = 128;  // + the signal's number

// A signal handler can reach nothing but statics. The first signal asks the
// verb to stop and clean up; SA_RESETHAND lets a second one end the process.
StopToken g_stop;
volatile std::sig_atomic_t g_signal = 0;

extern "C" void on_signal(int number) {
  g_signal = number;
  g_stop.request_stop();
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // A closed pipe must be a failed write, with a message and an exit code.
  std::signal(SIGPIPE, SIG_IGN);
}

int report(const Error& error, const Verb& verb, std::ostream& out,
           std::ostream& err) {
  Terminal terminal(err, {.quiet = *verb.quiet});
  bool said = false;  // a refusal for one reason is that finding
  for (const Finding& finding : error.findings()) {
    terminal.finding(finding);
    said = said || finding.message == error.message();
  }
  if (!said) terminal.error(error.what());
  if (*verb.json) out << dump(failure_json(verb.name, error)) << '\n';
  if (error.code() == ErrorCode::Interrupted && g_signal != 0) {
    return kExitSignal + g_signal;
  }
  return kExitFailed;
}

// The one place where exceptions become exit codes.
int run_verb(const Verb& verb, std::ostream& out, std::ostream& err) {
  const Context context{.out = out, .err = err, .stop = &g_stop};
  int code = 0;
  try {
    code = verb.run(context);
  } catch (const UsageError& error) {
    Terminal(err, {}).error(error.what());
    err << "Run zckpt " << verb.name << " --help for help.\n";
    return kExitUsage;
  } catch (const Error& error) {
    code = report(error, verb, out, err);
  } catch (const std::bad_alloc&) {
    code = report(Error(ErrorCode::Limit, "out of memory"), verb, out, err);
  } catch (const std::exception& error) {
    code = report(Error(ErrorCode::Internal, error.what()), verb, out, err);
  }
  out.flush();
  if (!out) {
    Terminal(err, {}).error("standard output could not be written");
    return kExitFailed;
  }
  return code;
}

}  // namespace

int run(int argc, char** argv, std::ostream& out, std::ostream& err) {
  CLI::App app("Reads, checks and merges DeepSpeed ZeRO checkpoints.", "zckpt");
  app.set_version_flag("--version", "zckpt " ZCKPT_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  const std::vector<Verb> verbs{add_inspect(app), add_merge(app),
                                add_verify(app)};
  // CLI11 would say only that a subcommand is missing.
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(verbs.begin(), verbs.end(),
                   [&](const Verb& verb) { return verb.name == argv[1]; })) {
    Terminal(err, {}).error("there is no verb " + escape(argv[1]));
    err << "Run zckpt --help for help.\n";
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error, out, err);
    return code == 0 ? 0 : kExitUsage;
  }
  catch_signals();
  const std::string chosen = app.get_subcommands().front()->get_name();
  for (const Verb& verb : verbs) {
    if (verb.name == chosen) return run_verb(verb, out, err);
  }
  return kExitUsage;
}

}  // namespace zckpt::cli
