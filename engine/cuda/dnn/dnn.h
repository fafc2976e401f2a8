// Attention by cuDNN: what Go calls of it. A plan is the attention of one shape with the engine that the library has chosen for it.
#ifndef PB_DNN_H
#define PB_DNN_H

#include "cudnn9.h"
#include "shim.h"

// Codes of pb_error for what cuDNN returns start here.
enum { PB_DNN_CODES = 2 * PB_LIBRARY_CODES };

typedef struct pb_dnn pb_dnn;  // the opened library
typedef struct pb_dnn_stream pb_dnn_stream;
typedef struct pb_dnn_plan pb_dnn_plan;

// o [b, lq, h, d] = softmax(scale q k^T) v with k and v [b, lk, h, d], everything bf16, and, where stats is set, the log-sum-exp of the scores [b, h, lq] in
// f32. Strides are elements: item, row, head; of lse item, head. Rows of a head are d elements beside each other.
typedef struct {
  int b, h, lq, lk, d, stats;
  int64_t q[3], k[3], v[3], o[3], lse[2];
} pb_dnn_shape;

// pb_dnn_load makes a descriptor too, which opens the libraries that cuDNN consists of.
int pb_dnn_load(void *library, pb_dnn **out, pb_error *e);
int pb_dnn_open(pb_dnn *dnn, pb_device *d, uint64_t stream, pb_dnn_stream **out, pb_error *e);
int pb_dnn_close(pb_dnn_stream *s, pb_error *e);
// pb_dnn_plan_new gives no plan where the library has none for the shape within so many bytes of workspace, with the reason in e.
void pb_dnn_plan_new(pb_dnn_stream *s, const pb_dnn_shape *shape, uint64_t most, pb_dnn_plan **out, pb_error *e);
void pb_dnn_plan_free(pb_dnn_stream *s, pb_dnn_plan *p);
int pb_dnn_attend(pb_dnn_stream *s, pb_dnn_plan *p, float scale, uint64_t q, uint64_t k, uint64_t v, uint64_t o, uint64_t lse, uint64_t workspace,
                  pb_error *e);

#endif
