// The vector runner's command line, for any executor.
#pragma once

#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "execute.hpp"

namespace conformance {

struct tally {
  long passed = 0, failed = 0, skipped = 0;
};

// One line for a case that fails or is skipped.
template <class Executor>
void run_case(const request& r, tally& t) {
  std::string wrong;
  try {
    const outcome o = executes<Executor>::run(r);
    if (!o.skipped.empty()) {
      std::cout << "skipped " << r.id << ": " << o.skipped << '\n';
      ++t.skipped;
      return;
    }
    wrong = differences(r, o);
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  if (wrong.empty()) {
    ++t.passed;
  } else {
    std::cout << "FAILED " << r.id << ": " << wrong << '\n';
    ++t.failed;
  }
}

// All requests of a file; throws `malformed`, at line 0 where it cannot be opened.
inline std::vector<request> read_requests(const char* path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw malformed(0, "cannot be opened");
  std::vector<request> requests;
  for (const vector_case& c : read_vectors(in)) requests.push_back(parse_request(c));
  return requests;
}

// Runs every case of every file. A file is read to its end before its first case is run, so a malformed one counts
// nothing. Returns the exit status: 1 if any case failed, 2 if any file was malformed or no file was named.
template <class Executor>
int run_files(const std::vector<const char*>& paths) {
  if (paths.empty()) {
    std::cerr << "usage: conformance_vectors FILE...\n";
    return 2;
  }
  tally t;
  bool any_malformed = false;
  for (const char* path : paths) {
    try {
      for (const request& r : read_requests(path)) run_case<Executor>(r, t);
    } catch (const malformed& e) {
      std::cout.flush();
      std::cerr << path << (e.line == 0 ? "" : ":" + std::to_string(e.line)) << ": " << e.what() << '\n';
      any_malformed = true;
    }
  }
  std::cout << t.passed << " passed, " << t.failed << " failed, " << t.skipped << " skipped\n";
  return any_malformed ? 2 : t.failed > 0 ? 1 : 0;
}

}  // namespace conformance
