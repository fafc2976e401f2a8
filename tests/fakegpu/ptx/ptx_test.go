package ptx

import (
	"strings"
	"testing"
)

// module is PTX of one kernel with the given body.
func module(body string) string {
	return ".visible .entry k(\n\t.param .align 8 .b8 k_param_0[24]\n)\n.maxntid 256, 1, 1\n{\n" + body + "\n}\n"
}

// TestRefusals checks that instructions in a form that is not known are refused by their text, not translated to
// something else.
func TestRefusals(t *testing.T) {
	for _, body := range []string{
		"atom.global.add.f32 %f1, [%rd1], %f2;", "add.rz.f32 %f1, %f2, %f3;", "cvt.rzi.s32.f32 %r1, %f1;",
		"ld.local.f32 %f1, [%rd1];", "ld.volatile.global.f32 %f1, [%rd1];", "ld.f32 %f1, [%rd1];", "bar.sync.aligned 0;",
		"shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;", "mul.sat.f32 %f1, %f2, %f3;", "mul.hi.u64 %rd1, %rd2, %rd3;",
		"setp.num.f32 %p1, %f1, %f2;", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2}, {%f1};",
		"cp.async.ca.shared.global [%r1], [%rd1], 4, %r2;", "mov.u32 %r1, %laneid;", "add.s32 %r1;",
	} {
		_, err := Translate(module(body))
		first, _, _ := strings.Cut(strings.TrimSuffix(body, ";"), " ")
		if err == nil || !strings.Contains(err.Error(), first) && !strings.Contains(err.Error(), "%laneid") {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := Translate(".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\nret;\n}\n"); err == nil {
		t.Error("a kernel with a parameter of another form is translated")
	}
}

// TestJoinedProducts checks where the driver's compiler may make one operation of a product and a sum: in a basic
// block, unless either has a rounding of its own or the product's register has another value by then.
func TestJoinedProducts(t *testing.T) {
	const product = "mul.f32 %f1, %f2, %f3;\n"
	for body, joined := range map[string]bool{
		product + "add.f32 %f4, %f1, %f5;":                                       true,
		product + "sub.f32 %f4, %f5, %f1;":                                       true,
		"mul.rn.f32 %f1, %f2, %f3;\nadd.f32 %f4, %f1, %f5;":                      false,
		product + "add.rn.f32 %f4, %f1, %f5;":                                    false,
		product + "$L__BB0_1:\nadd.f32 %f4, %f1, %f5;":                           false,
		product + "mov.f32 %f1, %f6;\nadd.f32 %f4, %f1, %f5;":                    false,
		product + "ld.global.v2.f32 {%f6, %f1}, [%rd1];\nadd.f32 %f4, %f1, %f5;": false,
		"@%p1 mul.f32 %f1, %f2, %f3;\nadd.f32 %f4, %f1, %f5;":                    false,
	} {
		kernels, err := Translate(module(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(kernels[0].Code, "ptx::joins("); got != joined {
			t.Errorf("%q: joined %t, want %t", body, got, joined)
		}
	}
}
