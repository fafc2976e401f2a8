// Package ptx translates PTX, as NVRTC makes it of engine/cuda/kernels, to C++ on the fibers of the fake device
// (fake/ptx.h has what the translation calls). It knows the instructions that these kernels have, each in the forms
// that occur, and refuses all others.
package ptx

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kernel is a translated kernel: a file of C++ with a function of its name.
type Kernel struct{ Name, Code string }

// Translate translates the kernels of a PTX module.
func Translate(text string) (kernels []Kernel, err error) {
	defer func() {
		if r := recover(); r != nil {
			refusal, ok := r.(refused)
			if !ok {
				panic(r)
			}
			err = refusal
		}
	}()
	found := entry.FindAllStringSubmatch(text, -1)
	if n := strings.Count(text, ".entry "); len(found) != n || n == 0 {
		return nil, refused(fmt.Sprintf("%d of %d kernels have one structure as parameter", len(found), n))
	}
	for _, m := range found {
		k := kernel{products: map[string]int{}}
		k.translate(m[3])
		code := fmt.Sprintf("#include \"ptx.h\"\nstruct parameter { unsigned char b[%s]; };\n"+
			"extern \"C\" __attribute__((visibility(\"default\"))) void %s(parameter param) {\nrace::begin();\n%s%s}\n",
			m[2], m[1], k.registers.String(), k.code.String())
		kernels = append(kernels, Kernel{m[1], code})
	}
	return kernels, nil
}

// entry is a kernel: name, bytes of its parameter, body. The driver reads the bounds of its launches.
var entry = regexp.MustCompile(`(?s)\.visible \.entry (\w+)\(\s*\.param \.align \d+ \.b8 \w+\[(\d+)\]\s*\)` +
	`.*?\n\{(.*?)\n\}\n`)

// refused is why PTX cannot be translated.
type refused string

func (r refused) Error() string { return "translate PTX: " + string(r) }

// kernel is the translation of one kernel.
type kernel struct {
	registers, code strings.Builder
	work            int            // of the instructions since the last label or jump, see cost
	place           int            // counts places where a product may be joined with a sum
	products        map[string]int // of the registers that hold one in this basic block, where its factors are kept
}

// ctypes are the C++ types of PTX's.
var ctypes = map[string]string{
	"s8": "int8_t", "u8": "uint8_t", "b8": "uint8_t", "s16": "int16_t", "u16": "uint16_t", "b16": "uint16_t",
	"s32": "int32_t", "u32": "uint32_t", "b32": "uint32_t", "s64": "int64_t", "u64": "uint64_t", "b64": "uint64_t",
	"f32": "float", "f64": "double", "pred": "bool",
}

// width is the number of bits of a type.
func width(t string) int {
	n, err := strconv.Atoi(t[1:])
	if err != nil {
		panic(refused("type " + t))
	}
	return n
}

// sized is the type of that kind with n bits.
func sized(kind byte, n int) string { return string(kind) + strconv.Itoa(n) }

var (
	label     = regexp.MustCompile(`^(\$\w+):\s*`)
	register  = regexp.MustCompile(`^\.reg\s+\.(\w+)\s+%(\w+)<(\d+)>$`)
	guard     = regexp.MustCompile(`^@(!?)%(p\d+)\s+`)
	name      = regexp.MustCompile(`^%(rs|rd|fd|[rfp])\d+$`)
	special   = regexp.MustCompile(`^%(tid|ntid|ctaid|nctaid)\.([xyz])$`)
	parameter = regexp.MustCompile(`^\w+_param_0$`)
	place     = regexp.MustCompile(`^\[\s*([^\]+\s]+)\s*(?:\+\s*(-?\d+))?\s*\]$`)
	comment   = regexp.MustCompile(`//[^\n]*`)
)

func (k *kernel) translate(body string) {
	body = comment.ReplaceAllString(body, "")
	for part := range strings.SplitSeq(body, ";") {
		for {
			part = strings.TrimLeft(part, "{} \t\r\n") // of blocks; no instruction begins with a vector
			if rest, ok := strings.CutPrefix(part, ".pragma"); ok {
				part = rest[strings.LastIndexByte(rest, '"')+1:]
				continue
			}
			m := label.FindStringSubmatch(part)
			if m == nil {
				break
			}
			clear(k.products)
			k.count()
			fmt.Fprintf(&k.code, "%s:;\n", symbol(m[1]))
			part = part[len(m[0]):]
		}
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if m := register.FindStringSubmatch(part); m != nil {
			n, _ := strconv.Atoi(m[3])
			for i := 1; i < n; i++ {
				fmt.Fprintf(&k.registers, "%s %s%d;\n", ctypes[m[1]], m[2], i)
			}
			continue
		}
		k.statement(part)
	}
}

func symbol(l string) string { return strings.ReplaceAll(l, "$", "L") }

// statement translates one instruction with its guard.
func (k *kernel) statement(text string) {
	condition := ""
	if m := guard.FindStringSubmatch(text); m != nil {
		condition, text = "if ("+m[1]+m[2]+") ", text[len(m[0]):]
	}
	i := strings.IndexAny(text, " \t")
	if i < 0 {
		i = len(text)
	}
	in := instruction{
		kernel: k, text: text, op: text[:i], part: strings.Split(text[:i], "."), args: split(text[i:]),
		guarded: condition != "",
	}
	in.kind = in.part[len(in.part)-1]
	code := in.translate()
	if k.work += in.cost(); in.part[0] == "bra" || in.part[0] == "ret" {
		k.count()
	}
	fmt.Fprintf(&k.code, "%s{ %s }\n", condition, code)
	if in.part[0] == "bra" {
		clear(k.products)
	}
	for _, r := range in.args[:min(1, len(in.args))] {
		for _, r := range vector(r) {
			if k.products[r] != in.product {
				delete(k.products, r) // another value now
			}
		}
	}
}

// count adds the work since the last label or jump to that of the launch.
func (k *kernel) count() {
	if k.work > 0 {
		fmt.Fprintf(&k.code, "fk::counted.work += %d;\n", k.work)
	}
	k.work = 0
}

// split returns operands, vectors and addresses whole.
func split(s string) (out []string) {
	depth, from := 0, 0
	for i, c := range s + "," {
		switch {
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 0:
			if v := strings.TrimSpace(s[from:i]); v != "" {
				out = append(out, v)
			}
			from = i + 1
		}
	}
	return out
}

// vector returns the elements of a vector, or the operand itself.
func vector(o string) []string {
	if !strings.HasPrefix(o, "{") {
		return []string{o}
	}
	return split(strings.Trim(o, "{}"))
}

// classOf returns the type of a register, "" for other operands.
func classOf(o string) string {
	m := name.FindStringSubmatch(o)
	if m == nil {
		return ""
	}
	return map[string]string{"rs": "b16", "r": "b32", "rd": "b64", "f": "f32", "fd": "f64", "p": "pred"}[m[1]]
}

// read is operand o as type t; where the register is of another class, its bits.
func read(o, t string) string {
	if class := classOf(o); class != "" {
		v := o[1:]
		switch {
		case t == class || t == "f32" && class == "f32":
			return v
		case t == "f32" || t == "f64":
			return "ptx::" + t + "(" + v + ")"
		case class == "f32" || class == "f64":
			v = "ptx::bits(" + v + ")"
		}
		return "((" + ctypes[t] + ")" + v + ")"
	}
	switch {
	case strings.HasPrefix(o, "0f") && len(o) == 10:
		return "ptx::f32(0x" + o[2:] + "u)"
	case strings.HasPrefix(o, "0d") && len(o) == 18:
		return "ptx::f64(0x" + o[2:] + "ull)"
	case parameter.MatchString(o):
		return "((" + ctypes[t] + ")(uint64_t)param.b)"
	case o == "pool":
		return "((" + ctypes[t] + ")0)"
	}
	if m := special.FindStringSubmatch(o); m != nil {
		of := map[string]string{
			"tid": "fk::self()->thread", "ntid": "fk::block.threads", "ctaid": "fk::block.index", "nctaid": "fk::block.grid",
		}[m[1]]
		return "((" + ctypes[t] + ")" + of + "." + m[2] + ")"
	}
	if _, err := strconv.ParseInt(o, 0, 64); err == nil {
		return "((" + ctypes[t] + ")" + o + "ll)"
	}
	if _, err := strconv.ParseUint(o, 0, 64); err == nil {
		return "((" + ctypes[t] + ")" + o + "ull)"
	}
	panic(refused("operand " + o))
}

// write assigns v of type t to register d; shorter signed numbers are extended.
func write(d, t, v string) string {
	class := classOf(d)
	to := d[1:]
	switch {
	case class == "":
		panic(refused("destination " + d))
	case class == "pred":
		return to + " = " + v + ";"
	case class == t:
		return to + " = " + v + ";"
	case class == "f32" || class == "f64":
		return to + " = ptx::" + class + "((" + ctypes[sized('u', width(class))] + ")(" + v + "));"
	case t == "f32" || t == "f64":
		v = "ptx::bits((" + ctypes[t] + ")(" + v + "))"
	case t[0] == 's' && width(t) < width(class):
		v = "(" + ctypes[sized('s', width(class))] + ")(" + ctypes[t] + ")(" + v + ")"
	}
	return to + " = (" + ctypes[class] + ")(" + v + ");"
}

// address is that of an operand in brackets.
func address(o string) string {
	m := place.FindStringSubmatch(o)
	if m == nil {
		panic(refused("address " + o))
	}
	at := read(m[1], "u64")
	if m[2] != "" {
		at += " + (uint64_t)" + m[2] + "ll"
	}
	return at
}
