// What Go calls of NCCL. Calls here belong to one communicator at a time; what is to be one group is one call, because NCCL counts groups a thread.
#ifndef PB_NCCL_SHIM_H
#define PB_NCCL_SHIM_H

#include "nccl.h"
#include "shim.h"

typedef struct pb_nccl pb_nccl;

// One rank of a group that is made: on which device, by which of the ids of the call, how many multiprocessors its exchanges may take (0: NCCL chooses), and
// the communicator it gets.
typedef struct {
  pb_device *device;
  int id, rank, size, most;
  uint64_t communicator;
} pb_nccl_end;

enum { PB_SEND, PB_RECV, PB_ALL_GATHER, PB_REDUCE_SCATTER, PB_ALL_REDUCE };

// One call inside an exchange: count elements of a type, to or from peer.
typedef struct {
  uint64_t src, dst, count;
  int call, type, peer;
} pb_nccl_part;

int pb_nccl_open(void *library, pb_nccl **out, pb_error *e);
int pb_nccl_id(pb_nccl *n, void *id, pb_error *e);
int pb_nccl_connect(pb_nccl *n, const void *ids, pb_nccl_end *ends, int count, pb_error *e);
int pb_nccl_state(pb_nccl *n, uint64_t communicator, int *pending, pb_error *e);
int pb_nccl_exchange(pb_nccl *n, pb_device *d, uint64_t communicator, uint64_t stream, const pb_nccl_part *parts, int count, int *pending, pb_error *e);
int pb_nccl_finalize(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e);
int pb_nccl_destroy(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e);
int pb_nccl_abort(pb_nccl *n, pb_device *d, uint64_t communicator, pb_error *e);

#endif
