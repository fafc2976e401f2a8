// Has the real cuDNN make plans of the descriptors of engine/cuda/dnn/dnn.c, without a GPU: for devices that are described by their properties. The driver is a
// stub whose loads succeed, so all is proved but that the kernels run. Arguments: the path of libcudnn.so.9.
#include "../../../engine/cuda/dnn/dnn.c"

// What cuDNN asks of a device, as JSON: the names are its own.
static const char *properties =
    "{\"deviceVer\": %d, \"driverVer\": 12040, \"cudaDeviceId\": 0, \"pciDeviceId\": 0, \"deviceName\": \"GPU\", \"maxGridSize\": [2147483647, 65535, 65535], "
    "\"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"multiProcessorCount\": 132, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
    "\"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": 1024, \"maxSharedMemoryPerSM\": %d, \"maxRegistersPerSM\": 65536, "
    "\"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": 1980000, "
    "\"memClockRateKHz\": 3201000, \"memoryBusWidth\": 6144, \"l2CacheSize\": 62914560, \"totalGlobalMem\": 150000000000}";

// plan is what describe and choose do, for a device without a handle.
static int plan(pb_dnn *dnn, pb_dnn_plan *p, int capability, int shared, int64_t *bytes, pb_error *e) {
  cudnnBackendDescriptor_t device;
  char json[2048];
  int64_t count = 0;
  cudnnBackendHeurMode_t mode = PB_DNN_MODE_A;
  snprintf(json, sizeof json, properties, capability, shared, shared + 1024);
  CALL(dnn, cudnnBackendCreateDescriptor, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
  SET(dnn, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json);
  CALL(dnn, cudnnBackendFinalize, device);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_GRAPH, &p->graph);
  SET(dnn, p->graph, PB_DNN_GRAPH_OPS, PB_DNN_TYPE_DESCRIPTOR, 1, &p->sdpa);
  CALL(dnn, cudnnBackendFinalize, p->graph);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_ENGINEHEUR, &p->heuristic);
  SET(dnn, p->heuristic, PB_DNN_HEUR_GRAPH, PB_DNN_TYPE_DESCRIPTOR, 1, &p->graph);
  SET(dnn, p->heuristic, PB_DNN_HEUR_MODE, PB_DNN_TYPE_HEUR_MODE, 1, &mode);
  SET(dnn, p->heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, PB_DNN_TYPE_DESCRIPTOR, 1, &device);
  CALL(dnn, cudnnBackendFinalize, p->heuristic);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_ENGINECFG, &p->config);
  CALL(dnn, cudnnBackendGetAttribute, p->heuristic, PB_DNN_HEUR_RESULTS, PB_DNN_TYPE_DESCRIPTOR, 1, &count, &p->config);
  if (count < 1) return failed(dnn, PB_DNN_NOT_SUPPORTED, "no engine", e);
  CALL(dnn, cudnnBackendCreateDescriptor, PB_DNN_PLAN, &p->plan);
  SET(dnn, p->plan, PB_DNN_PLAN_CONFIG, PB_DNN_TYPE_DESCRIPTOR, 1, &p->config);
  SET(dnn, p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, PB_DNN_TYPE_DESCRIPTOR, 1, &device);
  CALL(dnn, cudnnBackendFinalize, p->plan);
  CALL(dnn, cudnnBackendGetAttribute, p->plan, PB_DNN_PLAN_WORKSPACE, PB_DNN_TYPE_INT64, 1, &count, bytes);
  return 0;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    int capability, shared, b, h, lq, lk, d, stats;
  } cases[] = {
      {"FLUX.1, 1024 x 1024", 800, 166912, 1, 24, 4608, 4608, 128, 1}, {"FLUX.1, 1024 x 1024", 890, 101376, 1, 24, 4608, 4608, 128, 1},
      {"FLUX.1, 1024 x 1024", 900, 232448, 1, 24, 4608, 4608, 128, 0}, {"a part of it, with sums", 900, 232448, 1, 6, 1167, 4608, 128, 1},
      {"SD3", 900, 232448, 2, 24, 4429, 4429, 64, 0},                  {"PixArt", 900, 232448, 2, 16, 4096, 4096, 72, 0},
      {"HunyuanDiT", 900, 232448, 1, 16, 4096, 4096, 88, 1},
  };
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    printf("%s\n", dlerror());
    return 1;
  }
  pb_error e = {0};
  pb_dnn *dnn;
  if (pb_dnn_load(library, &dnn, &e)) {
    printf("%s: %s\n", e.call, e.text);
    return 1;
  }
  int bad = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int b = cases[i].b, h = cases[i].h, lq = cases[i].lq, lk = cases[i].lk, d = cases[i].d;
    int64_t bytes = -1, row = 3 * (int64_t)h * d; // q, k and v side by side
    pb_dnn_shape s = {b,
                      h,
                      lq,
                      lk,
                      d,
                      cases[i].stats,
                      {lq * row, row, d},
                      {lk * row, row, d},
                      {lk * row, row, d},
                      {(int64_t)lq * h * d, (int64_t)h * d, d},
                      {(int64_t)h * lq, lq}};
    pb_dnn_plan *p = calloc(1, sizeof *p);
    p->stats = s.stats;
    memset(&e, 0, sizeof e);
    int failed = tensors(dnn, p, &s, &e) || operation(dnn, p, &e) || plan(dnn, p, cases[i].capability, cases[i].shared, &bytes, &e);
    bad += failed;
    printf("cuDNN's plan for sm_%d, %s: %s%s, workspace %lld bytes\n", cases[i].capability / 10, cases[i].name, failed ? "NONE, " : "made",
           failed ? e.text : s.stats ? ", with log-sum-exp" : "", (long long)bytes);
  }
  return bad > 0;
}
