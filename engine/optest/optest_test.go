package optest

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// log is a testing.TB that records errors instead of failing.
type log struct {
	testing.TB
	lines []string
}

func (l *log) Helper()                        {}
func (l *log) Errorf(format string, a ...any) { l.lines = append(l.lines, fmt.Sprintf(format, a...)) }

// Broken implementations: each embeds a correct one and breaks a single call.
type (
	offByLittle  struct{ *ref.Ops } // Linear is wrong by 2^-13 in one element
	strayWriter  struct{ *ref.Ops } // RMSNorm writes one element past a row
	inputChanger struct{ *ref.Ops } // MeanRows writes to its input
	lazy         struct{ *ref.Ops } // Upsample2x forgets the last row
	unchecked    struct{ *ref.Ops } // Activate accepts everything
)

func (o offByLittle) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	o.Ops.Linear(y, x, w, e)
	for y.Dims() > 1 {
		y = y.Index(0, y.Dim(0)-1)
	}
	y = y.Slice(0, y.Dim(0)-1, y.Dim(0))
	o.Add(y, y, engine.FromF32([]float32{1.0 / 8192}, 1))
}

func (o strayWriter) RMSNorm(y, x, w engine.Tensor, eps float32) {
	o.Ops.RMSNorm(y, x, w, eps)
	behind := engine.NewTensor(y.Buf, engine.F32, 1)
	behind.Off = y.Off + y.Dim(-1)
	for i := range y.Dims() - 1 {
		behind.Off += (y.Dim(i) - 1) * y.Stride(i)
	}
	o.Fill(behind, 0)
}

func (o inputChanger) MeanRows(y, x engine.Tensor) {
	o.Ops.MeanRows(y, x)
	o.Fill(x.Index(0, 0).Index(0, 0), 1)
}

func (o lazy) Upsample2x(y, x engine.Tensor) {
	half := y.Slice(1, 0, y.Dim(1)-2)
	o.Ops.Upsample2x(half, x.Slice(1, 0, x.Dim(1)-1))
}

func (unchecked) Activate(_, _ engine.Tensor, _ engine.Act) {}

// pick returns the case whose name starts with prefix.
func pick(t *testing.T, cases []testCase, prefix string) testCase {
	t.Helper()
	for _, c := range cases {
		if strings.HasPrefix(c.name, prefix) {
			return c
		}
	}
	t.Fatalf("no case %q", prefix)
	return testCase{}
}

func TestTheSuiteNoticesBrokenImplementations(t *testing.T) {
	for _, c := range []struct {
		name string
		ops  engine.Ops
		test testCase
		want string
	}{
		{"wrong value", offByLittle{ref.New()}, pick(t, linearCases(), "Linear/[12 37 65]"), "error 0.000122"},
		{"stray write", strayWriter{ref.New()}, pick(t, rmsNormCases(), "RMSNorm/[4 3 64]"), "wrote where it must not"},
		{
			"changed input",
			inputChanger{ref.New()},
			pick(t, meanRowsCases(), "MeanRows/[2 5 7]"),
			"x: wrote where it must not",
		},
		{"unwritten output", lazy{ref.New()}, pick(t, upsampleCases(), "Upsample2x/[2 3 5 7]"), "got NaN"},
	} {
		for _, gapped := range []bool{false, true} {
			clean, l, known := &log{TB: t}, &log{TB: t}, &Reference{}
			runCase(clean, ref.New(), known, c.test, engine.F32, gapped)
			runCase(l, c.ops, known, c.test, engine.F32, gapped) // with the cached results of ref
			if len(clean.lines) != 0 {
				t.Errorf("%s: the correct implementation fails: %q", c.name, clean.lines)
			}
			if len(l.lines) == 0 || !strings.Contains(strings.Join(l.lines, "\n"), c.want) {
				t.Errorf("%s, gapped %v: got failures %q, want one with %q", c.name, gapped, l.lines, c.want)
			}
		}
	}
	l := &log{TB: t}
	runMisuse(l, unchecked{ref.New()})
	if len(l.lines) != 2 || !strings.Contains(l.lines[0], "Activate: unknown: did not panic") {
		t.Errorf("an implementation without checks: got %q, want the two wrong calls of Activate", l.lines)
	}
}
