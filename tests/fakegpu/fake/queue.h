// What the fake driver shows to the libraries that work on its streams. Everything is used with `big` held.
#ifndef FAKE_QUEUE_H
#define FAKE_QUEUE_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
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
struct CUstream_st {
  CUcontext context;
  uint64_t id;
  std::deque<operation> queue;
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
void enqueue(CUstream s, std::function<void()> run, std::function<bool()> ready = [] { return true; },
             std::function<bool(std::vector<CUstream> &)> waits = [](std::vector<CUstream> &) { return false; });

}  // namespace fake

#endif
