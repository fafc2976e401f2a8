package value

import (
	"os"
	"strconv"
	"strings"

	"patchbay/engine"
)

// processors lists CPUs with vdpbf16ps whose denoise loops were measured in both types (docs/cpu.md), by vendor, family
// and model as reported by CPUID, and the type that is faster where AMX is not used. All others compute in f32, so that
// the picture a machine draws never depends on later measurements elsewhere. Each row covers the models of one core.
var processors = [...]struct {
	vendor   string
	family   int
	from, to int // models
	faster   engine.DType
}{
	{"AuthenticAMD", 25, 0x10, 0x1f, engine.BF16}, // Zen 4: Genoa
	{"AuthenticAMD", 25, 0x60, 0x7f, engine.BF16}, // Raphael, Phoenix
	{"AuthenticAMD", 25, 0xa0, 0xaf, engine.BF16}, // Bergamo
	{"GenuineIntel", 6, 0x8f, 0x8f, engine.F32},   // Sapphire Rapids: vdpbf16ps on one port
}

// fasterType returns the faster type on a CPU with vdpbf16ps; info is the content of /proc/cpuinfo.
func fasterType(info string) engine.DType {
	field := func(name string) string {
		for line := range strings.Lines(info) {
			if key, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	family, err := strconv.Atoi(field("cpu family"))
	if err != nil {
		return engine.F32
	}
	model, err := strconv.Atoi(field("model"))
	if err != nil {
		return engine.F32
	}
	for _, p := range processors {
		if p.vendor == field("vendor_id") && p.family == family && p.from <= model && model <= p.to {
			return p.faster
		}
	}
	return engine.F32
}

// fasterBF16 reports whether the backend of that name (engine.Ops.Name) is faster with bf16 activations on this
// machine.
func fasterBF16(device string) bool {
	if device != "cpu/avx512bf16" {
		return device == "cuda" || device == "cpu/amx"
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && fasterType(string(info)) == engine.BF16
}
