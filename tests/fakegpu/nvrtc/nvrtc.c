// Compiles one CUDA source with the NVRTC library at a path, to PTX (architecture compute_NN) or to a cubin (sm_NN).
//   nvrtc LIBRARY SOURCE ARCHITECTURE OUTPUT OPTION...
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program *program;
static int (*create)(program *, const char *, const char *, int, const char *const *, const char *const *);
static int (*compile)(program, int, const char *const *);
static int (*log_size)(program, size_t *), (*get_log)(program, char *);
static int (*ptx_size)(program, size_t *), (*get_ptx)(program, char *);
static int (*cubin_size)(program, size_t *), (*get_cubin)(program, char *);

static void *must(void *lib, const char *name) {
  void *f = dlsym(lib, name);
  if (!f) {
    fprintf(stderr, "nvrtc: no %s\n", name);
    exit(1);
  }
  return f;
}

static char *read_all(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) {
    perror(path);
    exit(1);
  }
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  char *text = calloc(n + 1, 1);
  if (fread(text, 1, n, f) != (size_t)n) exit(1);
  fclose(f);
  return text;
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: nvrtc LIBRARY SOURCE ARCHITECTURE OUTPUT OPTION...\n");
    return 2;
  }
  void *lib = dlopen(argv[1], RTLD_NOW);
  if (!lib) {
    fprintf(stderr, "nvrtc: %s\n", dlerror());
    return 1;
  }
  *(void **)&create = must(lib, "nvrtcCreateProgram");
  *(void **)&compile = must(lib, "nvrtcCompileProgram");
  *(void **)&log_size = must(lib, "nvrtcGetProgramLogSize");
  *(void **)&get_log = must(lib, "nvrtcGetProgramLog");
  *(void **)&ptx_size = must(lib, "nvrtcGetPTXSize");
  *(void **)&get_ptx = must(lib, "nvrtcGetPTX");
  *(void **)&cubin_size = must(lib, "nvrtcGetCUBINSize");
  *(void **)&get_cubin = must(lib, "nvrtcGetCUBIN");

  const char *slash = strrchr(argv[2], '/'), *options[32] = {"--std=c++17"};
  char arch[64];
  snprintf(arch, sizeof arch, "--gpu-architecture=%s", argv[3]);
  int count = 1;
  options[count++] = arch;
  for (int i = 5; i < argc && count < 32; i++) options[count++] = argv[i];

  program p;
  if (create(&p, read_all(argv[2]), slash ? slash + 1 : argv[2], 0, NULL, NULL)) return 1;
  int bad = compile(p, count, options);
  size_t n = 0;
  log_size(p, &n);
  if (n > 1) {
    char *text = calloc(n + 1, 1);
    get_log(p, text);
    fprintf(stderr, "%s", text);
  }
  if (bad) return 1;
  int ptx = !strncmp(argv[3], "compute", 7);
  if (ptx ? ptx_size(p, &n) : cubin_size(p, &n)) return 1;
  char *out = calloc(n + 1, 1);
  if (ptx ? get_ptx(p, out) : get_cubin(p, out)) return 1;
  FILE *f = fopen(argv[4], "wb");
  if (!f || fwrite(out, 1, ptx ? strlen(out) : n, f) == 0 || fclose(f)) {
    perror(argv[4]);
    return 1;
  }
  return 0;
}
