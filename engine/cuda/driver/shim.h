// What Go calls. Every entry makes its device's context the current one of the thread it runs on, so that goroutines may move between threads, and
// copies what went wrong into the caller's pb_error, because the driver keeps such texts a thread.
#ifndef PB_SHIM_H
#define PB_SHIM_H

#include "driver.h"

// What an error means: the call was refused and nothing else has changed, for lack of memory or otherwise; a graph, or something while one was captured, was
// refused; the context is lost.
enum { PB_KIND_REFUSED, PB_KIND_MEMORY, PB_KIND_CAPTURE, PB_KIND_LOST };

// Codes of pb_error for what libraries return that work on top of the driver start here.
enum { PB_LIBRARY_CODES = 1 << 16 };

typedef struct {
  int code;       // 0: no error; -1: the library could not be opened
  int kind;
  char call[40];  // function of the driver or library
  char text[256];
} pb_error;

// The opened library.
typedef struct pb_driver pb_driver;

// One device with its primary context, and what it was asked to do so far.
typedef struct pb_device pb_device;
struct pb_device {
  pb_driver *driver;
  CUcontext context;
  CUdevice number;
  int64_t calls;                           // of entries below that take a pb_device
  int (*current)(pb_device *, pb_error *);  // see pb_current
};

typedef struct {
  char name[96];
  int major, minor, multiprocessors, shared_optin;
  uint64_t memory;
} pb_info;

// pb_library_open opens the library at path and asks its version of the function so named, int f(int *) if out, else size_t f(void), and what CUDA it was
// built for of runtime, size_t f(void), 0 where that is NULL. where gets the path of the file.
int pb_library_open(const char *path, const char *version, int out, const char *runtime, void **library, int *number, int *cuda, char where[4096],
                    pb_error *e);
int pb_driver_open(const char *path, pb_driver **out, pb_error *e);
int pb_driver_version(pb_driver *d, int *out, pb_error *e);
int pb_device_count(pb_driver *d, int *out, pb_error *e);
int pb_device_info(pb_driver *d, int index, pb_info *out, pb_error *e);
int pb_device_open(pb_driver *d, int index, pb_device **out, pb_error *e);
int pb_device_close(pb_device *d, pb_error *e);
// pb_current makes the device's context that of the thread, as every entry here does. Libraries on top of the driver call it, which are linked apart.
static inline int pb_current(pb_device *d, pb_error *e) { return d->current(d, e); }
int pb_memory(pb_device *d, uint64_t *free_bytes, uint64_t *total, pb_error *e);
int pb_alloc(pb_device *d, uint64_t *out, uint64_t bytes, pb_error *e);
int pb_free(pb_device *d, uint64_t at, pb_error *e);
int pb_host_alloc(pb_device *d, void **out, uint64_t bytes, pb_error *e);
int pb_host_free(pb_device *d, void *at, pb_error *e);
int pb_upload(pb_device *d, uint64_t stream, uint64_t dst, const void *pinned, uint64_t bytes, pb_error *e);
int pb_download(pb_device *d, uint64_t stream, void *pinned, uint64_t src, uint64_t bytes, pb_error *e);
int pb_move(pb_device *d, uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes, pb_error *e);
int pb_peer(pb_device *d, pb_device *peer, int *reaches, pb_error *e);
int pb_move_peer(pb_device *d, uint64_t stream, uint64_t dst, pb_device *from, uint64_t src, uint64_t bytes, pb_error *e);
int pb_set(pb_device *d, uint64_t stream, uint64_t dst, int value, uint64_t bytes, pb_error *e);
int pb_write(pb_device *d, uint64_t stream, void *pinned, uint32_t value, pb_error *e);
int pb_stream_new(pb_device *d, int urgent, uint64_t *out, pb_error *e);
int pb_stream_free(pb_device *d, uint64_t stream, pb_error *e);
int pb_stream_sync(pb_device *d, uint64_t stream, pb_error *e);
int pb_stream_wait(pb_device *d, uint64_t stream, uint64_t event, pb_error *e);
int pb_device_sync(pb_device *d, pb_error *e);
int pb_event_new(pb_device *d, uint64_t *out, int timing, pb_error *e);
int pb_event_free(pb_device *d, uint64_t event, pb_error *e);
int pb_event_record(pb_device *d, uint64_t event, uint64_t stream, pb_error *e);
int pb_event_sync(pb_device *d, uint64_t event, pb_error *e);
int pb_event_done(pb_device *d, uint64_t event, int *done, pb_error *e);
int pb_event_elapsed(pb_device *d, uint64_t from, uint64_t to, float *milliseconds, pb_error *e);
int pb_module_load(pb_device *d, const void *image, uint64_t *out, pb_error *e);
int pb_module_free(pb_device *d, uint64_t module, pb_error *e);
int pb_function(pb_device *d, uint64_t module, const char *name, int shared, uint64_t *out, pb_error *e);
int pb_launch(pb_device *d, uint64_t stream, uint64_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, void *args,
              pb_error *e);

// pb_capture_begin has the stream keep what is enqueued from now on. pb_capture_end gives that as a graph, 0 after an error and where there was nothing; mode RELAXED lets other threads
// go on allocating, and the end come from another thread than the beginning.
int pb_capture_begin(pb_device *d, uint64_t stream, pb_error *e);
int pb_capture_end(pb_device *d, uint64_t stream, uint64_t *graph, pb_error *e);
// pb_graph_make gives graph back and makes *exec what launches it: what is there, not 0, is changed if only arguments are others, else replaced.
int pb_graph_make(pb_device *d, uint64_t graph, uint64_t *exec, pb_error *e);
int pb_graph_drop(pb_device *d, uint64_t graph, pb_error *e);
int pb_graph_launch(pb_device *d, uint64_t stream, uint64_t exec, pb_error *e);
int pb_graph_free(pb_device *d, uint64_t exec, pb_error *e);
// pb_calls counts entries that took d so far.
int64_t pb_calls(pb_device *d);

#endif
