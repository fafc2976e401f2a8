// What the fake driver shows to the libraries that work on its streams. Everything is used with `big` held.
#ifndef FAKE_QUEUE_H
#define FAKE_QUEUE_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"

// One operation of a stream. What is not ready waits for the streams that waits adds; it returns true where it also waits for something that the host has
// yet to do.
struct operation {
  std::function<bool()> ready;
  std::function<void()> run;
  std::function<bool(std::vector<CUstream> &)> waits;
};

struct CUctx_st {
  int device;
  int users = 0;
  int communicators = 0;
  size_t used = 0;                // bytes of device memory
  std::set<CUctx_st *> reaches;   // contexts whose memory may be used
  CUresult sticky = PB_SUCCESS;
};
// What a graph runs, when all of deps have run.
struct node {
  std::string kind;
  std::set<size_t> deps;
  std::function<void()> run;
};
// A sequence that is being captured. Streams that have joined it have the nodes that their next one waits for.
struct capture {
  CUstream origin;
  int mode;
  std::thread::id by;
  bool invalid = false, ended = false;
  std::vector<node> nodes;
  std::map<CUstream, std::set<size_t>> tails;
};
struct CUstream_st {
  CUcontext context;
  uint64_t id;
  std::deque<operation> queue;
  std::shared_ptr<capture> captured = nullptr;  // null: what comes is run
  int priority = 0;
};

namespace fake {

extern std::mutex big;
extern std::condition_variable_any moved;  // something has changed: whoever waits looks again
extern thread_local CUcontext current;
extern std::string fault;  // text of the last trouble
extern int outside;        // communicators with ranks in other processes, whose news wakes nobody here

uint64_t setting(const char *name, uint64_t otherwise);
bool told(const char *name);
CUresult trouble(CUresult code, const std::string &text);
CUresult check(CUstream s);
bool inside(uintptr_t at, size_t bytes, bool host, CUcontext owner);
bool step();
// travelled lets the clock run for a copy of bytes between two devices.
void travelled(int from, int to, size_t bytes);
// submit adds an operation that needs nothing but what came before it in its stream, or to the graph that the stream captures.
CUresult submit(CUstream s, const char *kind, std::function<void()> run);
// enqueue adds one that no graph can have.
void enqueue(CUstream s, std::function<void()> run, std::function<bool()> ready = [] { return true; },
             std::function<bool(std::vector<CUstream> &)> waits = [](std::vector<CUstream> &) { return false; });

}  // namespace fake

#endif
