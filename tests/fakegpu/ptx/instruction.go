package ptx

import (
	"fmt"
	"slices"
	"strings"
)

// instruction is one instruction without its guard.
type instruction struct {
	*kernel
	text, op string
	part     []string // of op
	kind     string   // the last part: the type
	args     []string
	guarded  bool
	product  int // where the factors of this one are kept; 0: it is no product
}

func (in *instruction) refuse() string { panic(refused("instruction " + in.text)) }

// a is operand i as the type of the instruction, as another one with of.
func (in *instruction) a(i int) string            { return in.of(i, in.kind) }
func (in *instruction) of(i int, t string) string { return read(in.arg(i), t) }
func (in *instruction) put(v string) string       { return write(in.arg(0), in.kind, v) }

func (in *instruction) arg(i int) string {
	if i >= len(in.args) {
		in.refuse()
	}
	return in.args[i]
}

// has reports whether a part of the instruction is m.
func (in *instruction) has(m string) bool { return slices.Contains(in.part, m) }

// only refuses an instruction with other modifiers than these between its name and its type.
func (in *instruction) only(mods ...string) {
	for _, m := range in.part[1 : len(in.part)-1] {
		if !slices.Contains(mods, m) {
			in.refuse()
		}
	}
}

// translate returns C++ for the instruction.
func (in *instruction) translate() string {
	switch in.part[0] {
	case "bra":
		return "goto " + symbol(in.arg(0)) + ";"
	case "ret":
		return "return;"
	case "bar":
		switch in.op {
		case "bar.sync":
			return "ptx::barrier();"
		case "bar.warp.sync":
			return "ptx::barrier_of_warp();"
		}
		return in.refuse()
	case "ld", "st":
		return in.memory()
	case "cp":
		return in.copy()
	case "ldmatrix", "mma", "shfl":
		return in.warp()
	case "mov":
		return in.move()
	case "cvta":
		return in.put(in.of(1, "u64"))
	case "cvt":
		return in.convert()
	case "setp":
		return in.compare()
	case "selp":
		return in.put(in.of(3, "pred") + " ? " + in.a(1) + " : " + in.a(2))
	}
	switch in.kind {
	case "pred":
		sign, ok := map[string]string{"and": "&&", "or": "||", "xor": "!=", "not": "!"}[in.part[0]]
		switch {
		case !ok:
			return in.refuse()
		case sign == "!":
			return in.put("!" + in.a(1))
		}
		return in.put(in.a(1) + " " + sign + " " + in.a(2))
	case "f32", "f64":
		return in.float()
	}
	return in.integer()
}

func (in *instruction) memory() string {
	loads, space, t := in.part[0] == "ld", "", in.kind
	if len(in.part) > 2 {
		space = in.part[1]
	}
	at, values := in.arg(0), in.arg(1)
	if loads {
		at, values = values, at
	}
	v := vector(values)
	in.only(space, fmt.Sprintf("v%d", len(v)))
	var out strings.Builder
	fmt.Fprintf(&out, "%s t[%d]; ", ctypes[t], len(v))
	if !loads {
		if space != "global" && space != "shared" {
			in.refuse()
		}
		for i, r := range v {
			fmt.Fprintf(&out, "t[%d] = %s; ", i, read(r, t))
		}
		fmt.Fprintf(&out, "ptx::store_%s<%s, %d>(%s, t);", space, ctypes[t], len(v), address(at))
		return out.String()
	}
	param := ""
	switch space {
	case "param":
		param = "param.b, "
	case "global", "shared":
	default:
		in.refuse()
	}
	fmt.Fprintf(&out, "ptx::load_%s<%s, %d>(%s%s, t);", space, ctypes[t], len(v), param, address(at))
	for i, r := range v {
		fmt.Fprintf(&out, " %s", write(r, t, fmt.Sprintf("t[%d]", i)))
	}
	return out.String()
}

func (in *instruction) copy() string {
	switch in.op {
	case "cp.async.cg.shared.global":
		return fmt.Sprintf("ptx::copy(%s, %s, %s, %s);", address(in.arg(0)), address(in.arg(1)), in.arg(2), in.of(3, "u32"))
	case "cp.async.commit_group":
		return "ptx::commit();"
	case "cp.async.wait_group":
		return "ptx::wait(" + in.arg(0) + ");"
	}
	return in.refuse()
}

// warp translates operations of all lanes.
func (in *instruction) warp() string {
	switch in.op {
	case "shfl.sync.bfly.b32":
		d, valid, _ := strings.Cut(in.arg(0), "|")
		v := fmt.Sprintf("ptx::shuffle(%s, %s, %s, %s)", in.of(1, "u32"), in.of(2, "u32"), in.of(3, "u32"), in.of(4, "u32"))
		if valid != "" {
			return write(d, "b32", v) + " " + write(valid, "pred", "true")
		}
		return write(d, "b32", v)
	case "ldmatrix.sync.aligned.m8n8.x4.shared.b16":
		return in.four("ptx::matrices(fk::LDM, " + address(in.arg(1)) + ", out);")
	case "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16":
		return in.four("ptx::matrices(fk::LDMT, " + address(in.arg(1)) + ", out);")
	case "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32":
		var operands []string
		for i := 1; i <= 3; i++ {
			for _, r := range vector(in.arg(i)) {
				operands = append(operands, read(r, "b32"))
			}
		}
		kind := "MMA"
		if in.kind == "s32" {
			kind = "MMA8"
		}
		return fmt.Sprintf("const uint32_t all[10] = {%s}; ", strings.Join(operands, ", ")) +
			in.four("fk::collective(fk::"+kind+", all, 40, out, 16, 0);")
	}
	return in.refuse()
}

// four is a call that gives every lane four words.
func (in *instruction) four(call string) string {
	out := "uint32_t out[4]; " + call
	d := vector(in.arg(0))
	if len(d) != 4 {
		in.refuse()
	}
	for i, r := range d {
		out += " " + write(r, "b32", fmt.Sprintf("out[%d]", i))
	}
	return out
}

func (in *instruction) move() string {
	if from := vector(in.arg(1)); len(from) > 1 { // pack
		n := width(in.kind) / len(from)
		var parts []string
		for i, r := range from {
			parts = append(parts, fmt.Sprintf("(uint64_t)%s << %d", read(r, sized('u', n)), i*n))
		}
		return in.put(strings.Join(parts, " | "))
	}
	if to := vector(in.arg(0)); len(to) > 1 { // unpack
		n := width(in.kind) / len(to)
		out := "const uint64_t all = " + in.a(1) + ";"
		for i, r := range to {
			out += " " + write(r, sized('b', n), fmt.Sprintf("all >> %d", i*n))
		}
		return out
	}
	return in.put(in.a(1))
}

func (in *instruction) convert() string {
	switch in.op {
	case "cvt.rn.bf16x2.f32":
		return write(in.arg(0), "b32", fmt.Sprintf("(uint32_t)ptx::bf16(%s) << 16 | ptx::bf16(%s)", in.of(1, "f32"),
			in.of(2, "f32")))
	case "cvt.rn.bf16.f32":
		return write(in.arg(0), "b16", "ptx::bf16("+in.of(1, "f32")+")")
	case "cvt.f32.f16":
		return write(in.arg(0), "f32", "ptx::half("+in.of(1, "b16")+")")
	case "cvt.sat.f32.f32":
		return in.put("ptx::saturate(" + in.a(1) + ")")
	case "cvt.rni.s32.f32":
		return write(in.arg(0), "s32", "ptx::nearest("+in.of(1, "f32")+")")
	}
	n := len(in.part)
	if n < 3 || n == 4 && in.part[1] != "rn" || n > 4 || ctypes[in.part[n-2]] == "" || ctypes[in.kind] == "" {
		return in.refuse()
	}
	to := in.part[n-2]
	if to[0] != 'f' && in.kind[0] == 'f' {
		return in.refuse() // of another rounding
	}
	return write(in.arg(0), to, "("+ctypes[to]+")"+in.a(1))
}

func (in *instruction) compare() string {
	if len(in.part) != 3 {
		return in.refuse()
	}
	x, y, how := in.a(1), in.a(2), in.part[1]
	real := in.kind[0] == 'f'
	signs := map[string]string{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
	value := ""
	switch sign := signs[how]; {
	case how == "ne" && real:
		value = fmt.Sprintf("%s != %s && %s == %s && %s == %s", x, y, x, x, y, y)
	case sign != "":
		value = x + " " + sign + " " + y
	case !real:
		return in.refuse()
	case how == "equ":
		value = fmt.Sprintf("!(%s < %s || %s > %s)", x, y, x, y)
	default: // true also where one is NaN: not the contrary
		sign = map[string]string{"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<", "neu": "=="}[how]
		if sign == "" {
			return in.refuse()
		}
		value = "!(" + x + " " + sign + " " + y + ")"
	}
	return write(in.arg(0), "pred", value)
}

// float translates arithmetic of f32 and f64.
func (in *instruction) float() string {
	exact := in.has("rn") // products and sums with a rounding are never joined
	switch in.op {
	case "ex2.approx.f32":
		return in.put("ptx::ex2(" + in.a(1) + ")")
	case "ex2.approx.ftz.f32":
		return in.put("ptx::ex2_ftz(" + in.a(1) + ")")
	case "rsqrt.approx.f32":
		return in.put("ptx::rsqrt(" + in.a(1) + ")")
	case "div.approx.f32", "div.full.f32":
		return in.put(fmt.Sprintf("ptx::quotient(%s, %s)", in.a(1), in.a(2)))
	case "fma.rm.f32":
		return in.put(fmt.Sprintf("ptx::fma_down(%s, %s, %s)", in.a(1), in.a(2), in.a(3)))
	}
	in.only("rn")
	switch in.part[0] {
	case "mul":
		v := in.put(in.a(1) + " * " + in.a(2))
		if !exact && !in.guarded && in.kind == "f32" {
			in.place++
			in.product = in.place
			fmt.Fprintf(&in.registers, "float x%d, y%d;\n", in.product, in.product)
			v = fmt.Sprintf("x%d = %s; y%d = %s; ", in.product, in.a(1), in.product, in.a(2)) + v
			in.products[in.arg(0)] = in.product
		}
		return v
	case "add", "sub":
		return in.put(in.sum(exact))
	case "fma":
		return in.put(fmt.Sprintf("std::fma(%s, %s, %s)", in.a(1), in.a(2), in.a(3)))
	case "div":
		return in.put(in.a(1) + " / " + in.a(2))
	case "rcp":
		return in.put("1 / " + in.a(1))
	case "sqrt":
		return in.put("std::sqrt(" + in.a(1) + ")")
	case "max":
		return in.put(fmt.Sprintf("ptx::most(%s, %s)", in.a(1), in.a(2)))
	case "min":
		return in.put(fmt.Sprintf("ptx::least(%s, %s)", in.a(1), in.a(2)))
	case "abs":
		return in.put("std::fabs(" + in.a(1) + ")")
	case "neg":
		return in.put("-" + in.a(1))
	}
	return in.refuse()
}

// sum is a sum or difference. Where an operand is a product of this basic block, the driver's compiler may join them.
func (in *instruction) sum(exact bool) string {
	sign := map[string]string{"add": "+", "sub": "-"}[in.part[0]]
	plain := in.a(1) + " " + sign + " " + in.a(2)
	if exact || in.kind != "f32" {
		return plain
	}
	joined := ""
	if at := in.products[in.arg(1)]; at > 0 {
		joined = fmt.Sprintf("std::fma(x%d, y%d, %s%s)", at, at, sign, in.a(2))
	} else if at := in.products[in.arg(2)]; at > 0 {
		joined = fmt.Sprintf("std::fma(%sx%d, y%d, %s)", sign, at, at, in.a(1))
	}
	if joined == "" {
		return plain
	}
	in.place++
	return fmt.Sprintf("[] { static const bool v = ptx::joins(%d); return v; }() ? %s : %s", in.place, joined, plain)
}

// integer translates arithmetic of integers, which wraps around.
func (in *instruction) integer() string {
	t := in.kind
	if len(t) < 2 || !strings.Contains("sub", t[:1]) {
		return in.refuse()
	}
	u := sized('u', width(t))
	switch in.part[0] {
	case "add":
		in.only()
		return in.put(in.of(1, u) + " + " + in.of(2, u))
	case "sub":
		in.only()
		return in.put(in.of(1, u) + " - " + in.of(2, u))
	case "and", "or", "xor":
		sign := map[string]string{"and": "&", "or": "|", "xor": "^"}[in.part[0]]
		return in.put(in.of(1, u) + " " + sign + " " + in.of(2, u))
	case "not":
		return in.put("~" + in.of(1, u))
	case "neg":
		return in.put("0 - " + in.of(1, u))
	case "min", "max":
		return in.put(fmt.Sprintf("std::%s(%s, %s)", in.part[0], in.a(1), in.a(2)))
	case "div":
		return in.put(in.a(1) + " / ptx::not_zero(" + in.a(2) + ")")
	case "rem":
		return in.put(in.a(1) + " % ptx::not_zero(" + in.a(2) + ")")
	case "shl":
		return in.put(fmt.Sprintf("ptx::left(%s, %s)", in.of(1, u), in.of(2, "u32")))
	case "shr":
		if t[0] == 'b' {
			t = u
		}
		return write(in.arg(0), t, fmt.Sprintf("ptx::right(%s, %s)", in.of(1, t), in.of(2, "u32")))
	case "mul":
		n := width(t)
		in.only("wide", "lo", "hi")
		double := sized(t[0], 2*n)
		switch {
		case in.has("wide"):
			return write(in.arg(0), double, fmt.Sprintf("(%[1]s)%[2]s * (%[1]s)%[3]s", ctypes[double], in.a(1), in.a(2)))
		case in.has("hi") && n == 32:
			return in.put(fmt.Sprintf("((%[1]s)%[2]s * (%[1]s)%[3]s) >> 32", ctypes[double], in.a(1), in.a(2)))
		case in.has("lo"):
			return in.put(in.of(1, u) + " * " + in.of(2, u))
		}
	case "mad":
		if in.only("lo"); in.has("lo") {
			return in.put(in.of(1, u) + " * " + in.of(2, u) + " + " + in.of(3, u))
		}
	case "bfi":
		if t == "b32" {
			return in.put(fmt.Sprintf("ptx::insert(%s, %s, %s, %s)", in.a(1), in.a(2), in.of(3, "u32"), in.of(4, "u32")))
		}
	}
	return in.refuse()
}

// cost is about how many instructions of a GPU this one becomes. Parameters are operands there and moves mostly go;
// addresses take two registers; the divisions of integers are subroutines.
func (in *instruction) cost() int {
	wide := in.kind[0] != 'f' && in.kind != "pred" && strings.HasSuffix(in.kind, "64")
	switch in.part[0] {
	case "mov", "cvta":
		return 0
	case "ld":
		if in.has("param") {
			return 0
		}
	case "div", "rem":
		switch {
		case in.kind == "f64":
			return 30
		case in.has("rn"):
			return 9
		case in.kind == "f32":
			return 3
		case wide:
			return 70
		}
		return 18
	case "mul", "mad":
		switch {
		case in.kind == "f64":
			return 2
		case wide:
			return 4
		}
	case "ex2", "rsqrt", "rcp", "sqrt":
		return 2
	case "add", "sub", "fma", "and", "or", "xor", "not", "neg", "min", "max", "shl", "shr", "setp", "selp":
		if wide || in.kind == "f64" {
			return 2
		}
	}
	return 1
}
