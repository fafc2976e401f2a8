// What the fakes of other libraries ask of the fake driver.
#pragma once
#include <functional>
#include <string>

#include "driver.h"

namespace fakegpu {

#pragma GCC visibility push(default)

// context is what is current on this thread, null: none.
CUcontext context();
// synchronize waits for all streams of the current context, as libraries do when they allocate.
CUresult synchronize();
// enqueue adds an operation to a stream of the current context.
CUresult enqueue(CUstream s, std::function<void()> run);
// device_memory reports whether [at, at + bytes) lies in one allocation that the current context may use.
bool device_memory(const void *at, size_t bytes);
// say tells of a refused call on stderr and in the text of the next error.
void say(const std::string &text);

#pragma GCC visibility pop

}  // namespace fakegpu
