// Runs all tests, or those whose names contain an argument. Each runs in its own process, with its
// settings.
#include "test.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

namespace test {

std::vector<Test>& all() {
  static auto* all = new std::vector<Test>();
  return *all;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

void refused(const std::function<void()>& body, const std::string& part) {
  const auto message = error_of(body);
  that(!message.empty(), "no error where `" + part + "` was expected");
  that(message.find(part) != std::string::npos, "no `" + part + "` in: " + message);
}

Held::Held(c10::Stream stream) {
  auto* hold = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "sim_hold"));
  hold(stream.device_index());
  ones(stream, 1);
}

Held::~Held() { reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "sim_release"))(); }

void busy(c10::Stream stream) {
  Within in(stream);
  const auto x = at::ones({400, 400}, on(stream.device_index()));
  for (int i = 0; i < 4; ++i) {
    at::matmul(x, x);
  }
}

}  // namespace test

namespace {

// Runs one test in this process, whose settings are the device's.
int run_one(const char* name) {
  for (const auto& test : test::all()) {
    if (strcmp(test.name, name) == 0) {
      const auto why = test::error_of(test.body);
      if (!why.empty()) {
        fprintf(stderr, "%s\n", why.c_str());
      }
      fflush(stderr);
      return why.empty() ? 0 : 1;
    }
  }
  return 2;
}

// Returns 0 if it passed; prints its output if it did not.
int run_apart(const char* program, const test::Test& test) {
  const std::string settings = std::string("4") + (*test.settings == 0 ? "" : ",") + test.settings;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("GPIPE_SIMULATE_GPUS", settings.c_str(), 1);
    execl(program, program, "--one", test.name, nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--one") == 0) {
    return run_one(argv[2]);
  }
  int passed = 0, failed = 0;
  for (const auto& test : test::all()) {
    if (argc > 1 && strstr(test.name, argv[1]) == nullptr) {
      continue;
    }
    const bool good = run_apart("/proc/self/exe", test) == 0;
    ++(good ? passed : failed);
    printf("test %s ... %s\n", test.name, good ? "passed" : "FAILED");
  }
  printf("\ntest result: %s. %d passed; %d failed\n", failed == 0 ? "ok" : "FAILED", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
