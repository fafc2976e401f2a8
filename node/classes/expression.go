package classes

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// expressionClasses returns the classes that compute with numbers.
func expressionClasses() []graph.Class {
	var letters []string
	for c := 'a'; c <= 'z'; c++ {
		letters = append(letters, string(c))
	}
	return []graph.Class{{
		Name: "ComfyMathExpression", Display: "Math Expression", Module: "comfy_extras.nodes_math", Category: "utilities",
		Aliases: "expression, formula, calculate, calculator, eval, math",
		Description: "Computes an expression of Python: numbers, a to z, values, + - * / // % **, comparisons, and, or, " +
			"not, x if c else y, and sum, min, max, abs, round, pow, sqrt, ceil, floor, log, log2, log10, sin, cos, tan, " +
			"int and float.",
		Inputs: []graph.Input{
			graph.Number("expression", "STRING", "", "default", "a + b", "multiline", true),
			graph.GrowNamed("values", letters, 1, graph.Link("value", "FLOAT,INT,BOOLEAN", "")),
		},
		Outputs: []graph.Slot{{Name: "FLOAT", Type: "FLOAT"}, {Name: "INT", Type: "INT"}, {Name: "BOOL", Type: "BOOLEAN"}},
		Run:     mathExpression,
	}}
}

func mathExpression(c *graph.Call) (out []any, err error) {
	text := c.Str("expression")
	defer func() {
		if p := recover(); p != nil {
			why, ok := p.(exprError)
			if !ok {
				panic(p)
			}
			err = fault.Bad("expression", "%s: %s", pyjson.Excerpt(text), string(why))
		}
	}()
	names, values := c.Grown("values")
	known := map[string]any{"values": values, "True": true, "False": false}
	e := &expr{tokens: exprToken.FindAllString(text, -1), names: known}
	for i, name := range names {
		e.names[name] = values[i]
	}
	f := e.choice(0)
	if len(e.tokens) > 0 {
		wrong("%s is not expected", e.tokens[0])
	}
	v := f()
	if _, list := v.([]any); list {
		wrong("the result is a list, not a number")
	}
	r := float(v)
	if math.IsNaN(r) || math.IsInf(r, 0) {
		wrong("the result is not finite")
	}
	return []any{r, whole(v), r != 0}, nil
}

// exprError is the panic value that carries an error in an expression out of the parser or the evaluation.
type exprError string

func wrong(format string, args ...any) { panic(exprError(fmt.Sprintf(format, args...))) }

// expr parses a Python expression into closures. Values are int64, float64, bool, and lists of them.
type expr struct {
	tokens []string
	names  map[string]any
}

// maxExprDepth bounds the nesting of an expression.
const maxExprDepth = 100

func deepen(depth int) {
	if depth > maxExprDepth {
		wrong("it is nested deeper than %d", maxExprDepth)
	}
}

// exprToken matches an operator or other sign, a number or a name.
var exprToken = regexp.MustCompile(`\*\*|//|[<>=!]=|0[xXoObB]\w*|\.?[0-9](?:[eE][+-]|[\w.])*|[A-Za-z_]\w*|[^ \t\r\n]`)

// take consumes and returns the next token if it is one of signs, else it returns "".
func (e *expr) take(signs ...string) string {
	if len(e.tokens) == 0 || !slices.Contains(signs, e.tokens[0]) {
		return ""
	}
	s := e.tokens[0]
	e.tokens = e.tokens[1:]
	return s
}

func (e *expr) need(sign string) {
	if e.take(sign) == "" {
		wrong("%s is missing", sign)
	}
}

// choice parses the operator that binds most loosely: x if c else y.
func (e *expr) choice(depth int) func() any {
	deepen(depth)
	yes := e.logic(depth, 0)
	if e.take("if") == "" {
		return yes
	}
	test := e.logic(depth, 0)
	e.need("else")
	no := e.choice(depth + 1)
	return func() any {
		if pyjson.Bool(test()) {
			return yes()
		}
		return no()
	}
}

// logic parses "or" (level 0), "and" (level 1) and "not" (level 2).
func (e *expr) logic(depth, level int) func() any {
	if level == 2 {
		if e.take("not") != "" {
			deepen(depth)
			x := e.logic(depth+1, 2)
			return func() any { return !pyjson.Bool(x()) }
		}
		return e.compare(depth)
	}
	x := e.logic(depth, level+1)
	for e.take([]string{"or", "and"}[level]) != "" {
		a, b := x, e.logic(depth, level+1)
		x = func() any {
			if v := a(); pyjson.Bool(v) == (level == 0) {
				return v
			}
			return b()
		}
	}
	return x
}

// compare parses a chain such as a < b <= c.
func (e *expr) compare(depth int) func() any {
	x := e.sum(depth)
	var signs []string
	parts := []func() any{x}
	for s := e.take("<", "<=", ">", ">=", "==", "!="); s != ""; s = e.take("<", "<=", ">", ">=", "==", "!=") {
		signs, parts = append(signs, s), append(parts, e.sum(depth))
	}
	if len(signs) == 0 {
		return x
	}
	return func() any {
		a := float(parts[0]())
		for i, s := range signs {
			b := float(parts[i+1]())
			if ok := map[string]bool{"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[s]; !ok {
				return false
			}
			a = b
		}
		return true
	}
}

func (e *expr) sum(depth int) func() any {
	return e.chain(func() func() any {
		return e.chain(func() func() any { return e.signed(depth) }, "*", "/", "//", "%")
	}, "+", "-")
}

// chain parses left-associative operators of equal precedence.
func (e *expr) chain(part func() func() any, signs ...string) func() any {
	x := part()
	for s := e.take(signs...); s != ""; s = e.take(signs...) {
		a, b, sign := x, part(), s
		x = func() any { return apply(sign, a(), b()) }
	}
	return x
}

// signed parses unary signs and **, which binds tighter than the sign in front of it.
func (e *expr) signed(depth int) func() any {
	deepen(depth)
	if s := e.take("-", "+"); s != "" {
		x := e.signed(depth + 1)
		return func() any {
			v := x()
			if f, ok := v.(float64); ok && s == "-" {
				return -f // also of 0
			}
			return apply(s, int64(0), v)
		}
	}
	x := e.value(depth)
	if e.take("**") != "" {
		y := e.signed(depth + 1)
		return func() any { return apply("**", x(), y()) }
	}
	return x
}

// value parses a number, a name, a call, or an expression in parentheses, and any [index] that follows.
func (e *expr) value(depth int) func() any {
	if len(e.tokens) == 0 {
		wrong("it ends too early")
	}
	t := e.tokens[0]
	e.tokens = e.tokens[1:]
	var x func() any
	switch {
	case t == "(":
		x = e.choice(depth + 1)
		e.need(")")
	case t[0] == '.' || t[0] >= '0' && t[0] <= '9':
		v := number(t)
		x = func() any { return v }
	case e.take("(") != "":
		var args []func() any
		for e.take(")") == "" {
			args = append(args, e.choice(depth+1))
			if e.take(",") == "" {
				e.need(")")
				break
			}
		}
		x = func() any {
			in := make([]any, len(args))
			for i := range args {
				in[i] = args[i]()
			}
			return call(t, in)
		}
	default:
		v, ok := e.names[t]
		if !ok {
			wrong("%s is not known", t)
		}
		x = func() any { return v }
	}
	for e.take("[") != "" {
		list, at := x, e.choice(depth+1)
		e.need("]")
		x = func() any {
			l, ok := list().([]any)
			i := whole(at())
			if i < 0 {
				i += int64(len(l))
			}
			if !ok || i < 0 || i >= int64(len(l)) {
				wrong("there is no item %d", i)
			}
			return l[i]
		}
	}
	return x
}

// pythonNumber matches the decimal literals of Python: underscores stand between digits, and whole numbers other than 0
// do not begin with 0.
var pythonNumber = regexp.MustCompile(`^(?:0(?:_?0)*|[1-9](?:_?\d)*|` +
	`(?:(?:\d(?:_?\d)*)?\.\d(?:_?\d)*|\d(?:_?\d)*\.?)(?:[eE][+-]?\d(?:_?\d)*)?)$`)

// number reads a literal of Python, decimal, hexadecimal (0x), octal (0o) or binary (0b).
func number(t string) any {
	if len(t) > 1 && t[0] == '0' && strings.ContainsRune("xXoObB", rune(t[1])) {
		n, err := strconv.ParseInt(t, 0, 64)
		if err != nil {
			wrong("%s is no number of 63 bits", t)
		}
		return n
	}
	digits := strings.ReplaceAll(t, "_", "")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err == nil && pythonNumber.MatchString(t) && (n == 0 || t[0] != '0') {
		return n
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || !pythonNumber.MatchString(t) || !strings.ContainsAny(t, ".eE") && t[0] == '0' {
		wrong("%s is no number", t)
	}
	return f
}

func float(v any) float64 {
	f, err := pyjson.Float(v)
	if _, text := v.(string); text || err != nil {
		wrong("%s is no number", pyjson.Excerpt(pyjson.Repr(v)))
	}
	return f
}

// whole converts like Python's int().
func whole(v any) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	f := math.Trunc(float(v))
	if !(math.Abs(f) < 1<<63) {
		wrong("%v is too large for a whole number", f)
	}
	return int64(f)
}

// apply computes in int64 if neither operand is a float (and for ** if the exponent is not negative), else in float64.
// Division with / always gives a float.
func apply(sign string, a, b any) any {
	x, y := float(a), float(b)
	if _, f := a.(float64); !f && sign != "/" {
		if _, f := b.(float64); !f && (sign != "**" || y >= 0) {
			return applyWhole(sign, whole(a), whole(b))
		}
	}
	if y == 0 && (sign == "/" || sign == "//" || sign == "%") || sign == "**" && x == 0 && y < 0 {
		wrong("division by zero")
	}
	switch sign {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "//":
		q, _ := divided(x, y)
		return q
	case "%":
		_, r := divided(x, y)
		return r
	}
	v := math.Pow(x, y)
	if math.IsNaN(v) {
		wrong("%v ** %v is not real", x, y)
	}
	return v
}

// divided returns quotient, rounded down, and remainder, with the sign of y, as CPython computes them
// (Objects/floatobject.c, _float_div_mod).
func divided(x, y float64) (q, r float64) {
	r = math.Mod(x, y)
	q = (x - r) / y
	if r == 0 {
		r = math.Copysign(0, y)
	} else if (y < 0) != (r < 0) {
		r, q = r+y, q-1
	}
	if q == 0 {
		return math.Copysign(0, x/y), r
	}
	whole := math.Floor(q)
	if q-whole > 0.5 {
		whole++
	}
	return whole, r
}

// roundedTo is Python's round with a number of digits, which may be negative. Ties of the exact value go to even.
func roundedTo(v any, digits int64) any {
	x := float(v)
	_, isFloat := v.(float64)
	switch {
	case digits > 323 || digits >= 0 && !isFloat: // 323: where the digits of an f64 end
		if isFloat {
			return x
		}
		return whole(v)
	case digits >= 0:
		out, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', int(digits), 64), 64)
		if err != nil {
			wrong("round(%v) is too large", v)
		}
		return out
	case digits < -308: // above the largest f64
		return apply("*", v, int64(0))
	}
	exact, unit := new(big.Rat).SetFloat64(x), new(big.Int).Exp(big.NewInt(10), big.NewInt(-digits), nil)
	if !isFloat {
		exact = new(big.Rat).SetInt64(whole(v))
	}
	if exact == nil {
		wrong("round(%v) is not finite", v)
	}
	n, rest := new(big.Int).QuoRem(exact.Num(), new(big.Int).Mul(exact.Denom(), unit), new(big.Int))
	half := new(big.Int).Mul(exact.Denom(), unit)
	if c := new(big.Int).Abs(new(big.Int).Lsh(rest, 1)).Cmp(half); c > 0 || c == 0 && n.Bit(0) == 1 {
		n.Add(n, big.NewInt(int64(exact.Sign())))
	}
	n.Mul(n, unit)
	if !isFloat {
		if !n.IsInt64() {
			wrong("a whole number is larger than 2**62")
		}
		return n.Int64()
	}
	out, _ := new(big.Rat).SetInt(n).Float64()
	return math.Copysign(out, x)
}

func applyWhole(sign string, a, b int64) any {
	exact := map[string]float64{"+": float64(a) + float64(b), "-": float64(a) - float64(b), "*": float64(a) * float64(b)}
	if v, ok := exact[sign]; ok && math.Abs(v) >= 1<<62 {
		wrong("a whole number is larger than 2**62")
	}
	switch sign {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		v := int64(1)
		for range min(b, 64) {
			if a < -1 || a > 1 {
				v = applyWhole("*", v, a).(int64)
			}
		}
		if a == -1 && b%2 != 0 || a == 0 && b > 0 {
			v = a
		}
		return v
	}
	if b == 0 {
		wrong("division by zero")
	}
	q, r := a/b, a%b
	if r != 0 && (r < 0) != (b < 0) { // Python rounds towards negative infinity
		q, r = q-1, r+b
	}
	if sign == "//" {
		return q
	}
	return r
}

// call calls a function in an expression. A single list argument stands for its items.
func call(name string, in []any) any {
	if list, ok := append(in, nil)[0].([]any); ok && len(in) == 1 {
		in = list
	}
	if f, ok := map[string]func(float64) float64{
		"sqrt": math.Sqrt, "log": math.Log, "log2": math.Log2, "log10": math.Log10, "sin": math.Sin, "cos": math.Cos,
		"tan": math.Tan, "float": func(v float64) float64 { return v },
	}[name]; ok && len(in) == 1 {
		v := f(float(in[0]))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			wrong("%s(%v) is not a number", name, float(in[0]))
		}
		return v
	}
	switch n := len(in); {
	case name == "sum":
		v := any(int64(0))
		for _, x := range in {
			v = apply("+", v, x)
		}
		return v
	case (name == "min" || name == "max") && n > 0:
		v := in[0]
		for _, x := range in[1:] {
			if float(x) < float(v) == (name == "min") && float(x) != float(v) {
				v = x
			}
		}
		return v
	case name == "abs" && n == 1:
		if float(in[0]) < 0 {
			return apply("-", int64(0), in[0])
		}
		return apply("+", int64(0), in[0])
	case name == "round" && n == 2:
		return roundedTo(in[0], whole(in[1]))
	case name == "round" && n == 1:
		return whole(math.RoundToEven(float(in[0])))
	case name == "pow" && n == 2:
		return apply("**", in[0], in[1])
	case name == "ceil" && n == 1:
		return whole(math.Ceil(float(in[0])))
	case name == "floor" && n == 1:
		return whole(math.Floor(float(in[0])))
	case name == "int" && n == 1:
		return whole(in[0])
	case name == "log" && n == 2:
		return math.Log(float(in[0])) / math.Log(float(in[1]))
	}
	wrong("there is no function %s of %d numbers", name, len(in))
	return nil
}
