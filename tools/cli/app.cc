// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/app.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
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
  // So must be a file beyond the limit of the shell (ulimit -f).
  std::signal(SIGXFSZ, SIG_IGN);
}

// Without this the first file opened would be taken for a stream that the
// caller closed, and messages would land in it. Writing to the one in the place
// of standard output fails, as it should.
void fill_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is this one.
    (void)::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

int wrong_usage(const std::string& message, const std::string& verb,
                std::ostream& err) {
  Terminal(err, {}).error(message);
  err << "Run zckpt " << verb << (verb.empty() ? "" : " ")
      << "--help for help.\n";
  return kExitUsage;
}

// CLI11's words, but for those that puzzle.
std::string usage_text(const CLI::ParseError& error) {
  const std::string text = error.what();
  const size_t twice = text.find(": At Most 1 required but received");
  if (twice != std::string::npos) {
    return text.substr(0, twice) + " was given more than once";
  }
  return escape(text);
}

int unwritable(std::ostream& err) {
  Terminal(err, {}).error("standard output could not be written");
  return kExitFailed;
}

int report(const Error& error, const Verb& verb, bool color, std::ostream& out,
           std::ostream& err) {
  Terminal terminal(err, {.quiet = *verb.quiet, .color = color});
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
int run_verb(const Verb& verb, bool color, std::ostream& out,
             std::ostream& err) {
  const Context context{.out = out, .err = err, .stop = &g_stop};
  int code = 0;
  try {
    code = verb.run(context);
  } catch (const UsageError& error) {
    return wrong_usage(error.what(), verb.name, err);
  } catch (const Error& error) {
    code = report(error, verb, color, out, err);
  } catch (const std::bad_alloc&) {
    code =
        report(Error(ErrorCode::Limit, "out of memory"), verb, color, out, err);
  } catch (const std::exception& error) {
    code =
        report(Error(ErrorCode::Internal, error.what()), verb, color, out, err);
  }
  out.flush();
  return out ? code : unwritable(err);
}

}  // namespace

int run(int argc, char** argv, std::ostream& out, std::ostream& err) {
  fill_standard_streams();
  CLI::App app("Reads, checks and merges DeepSpeed ZeRO checkpoints.", "zckpt");
  app.set_version_flag("--version", "zckpt " ZCKPT_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  const std::vector<Verb> verbs{add_export_hf(app), add_extract_lora(app),
                                add_inspect(app),   add_merge(app),
                                add_verify(app),    add_zero_to_fp32(app)};
  // CLI11 would say only that a subcommand is missing.
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(verbs.begin(), verbs.end(),
                   [&](const Verb& verb) { return verb.name == argv[1]; })) {
    return wrong_usage("there is no verb " + escape(argv[1]), "", err);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      const auto begun = app.get_subcommands();
      return begun.empty()
                 ? wrong_usage("a verb is required, such as merge", "", err)
                 : wrong_usage(usage_text(error), begun.front()->get_name(),
                               err);
    }
    app.exit(error, out, err);  // prints the help or the version
    out.flush();
    return out ? 0 : unwritable(err);
  }
  catch_signals();
  const CLI::App& chosen = *app.get_subcommands().front();
  const std::vector<std::string> color =
      chosen.get_option("--color")->results();
  for (const Verb& verb : verbs) {
    if (verb.name == chosen.get_name()) {
      return run_verb(verb, use_color(color.empty() ? "auto" : color.back()),
                      out, err);
    }
  }
  return kExitUsage;
}

}  // namespace zckpt::cli
