package torchfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"patchbay/engine"
)

// The values on the stack of a machine are nil, bool, int64, string, *dict, *storage, *tensor, and the other types
// here.
type (
	dict struct {
		keys   []string // only those that are strings, in file order
		values map[string]any
	}
	tuple   []any
	list    struct{} // its items are ignored
	mark    struct{}
	global  string   // a name that Python would import
	other   struct{} // a float, or a storage or tensor of a type in skippedStorages
	storage struct {
		dtype engine.DType
		key   string // of the member data/KEY
	}
	tensor struct {
		from          *storage
		offset        int64 // in elements
		shape, stride []int64
	}
)

// globals are the names that may occur, those of storages with their dtype. None is ever called, see machine.build.
var globals = map[global]engine.DType{
	"torch FloatStorage": engine.F32, "torch HalfStorage": engine.F16, "torch BFloat16Storage": engine.BF16,
	"collections OrderedDict": 0, "torch._utils _rebuild_tensor_v2": 0, "torch._utils _rebuild_parameter": 0,
}

// skippedStorages are the storages of types that no weight has; their tensors are left out.
var skippedStorages = map[global]bool{
	"torch LongStorage": true, "torch IntStorage": true, "torch ByteStorage": true, "torch BoolStorage": true,
	"torch DoubleStorage": true,
}

// machine is the state of a pickle that is being executed.
type machine struct {
	in    []byte
	at    int
	stack []any
	memo  map[int64]any
}

// unpickle returns the dictionary of tensors in a pickle, taken out of the dictionaries that training programs wrap
// around it (as in spandrel's canonicalize_state_dict).
func unpickle(in []byte) (*dict, error) {
	m := &machine{in: in, memo: map[int64]any{}}
	v, err := m.run()
	if err != nil {
		return nil, fmt.Errorf("data.pkl, byte %d: %w", m.at, err)
	}
	d, ok := v.(*dict)
	if !ok {
		return nil, fmt.Errorf("data.pkl holds no dictionary")
	}
	for _, key := range []string{"model_state_dict", "state_dict", "params_ema", "params-ema", "params", "model", "net"} {
		if inner, ok := d.values[key].(*dict); ok {
			return inner, nil
		}
	}
	if len(d.keys) == 1 {
		if inner, ok := d.values[d.keys[0]].(*dict); ok {
			return inner, nil
		}
	}
	return d, nil
}

// run executes the pickle and returns its result. It returns an error for opcodes and names that dictionaries of
// tensors do not need, and for a malformed stack.
func (m *machine) run() (any, error) {
	for {
		op, err := m.take(1)
		if err != nil {
			return nil, err
		}
		if op[0] == '.' {
			return m.pop()
		}
		if err := m.step(op[0]); err != nil {
			return nil, err
		}
	}
}

func (m *machine) step(op byte) (err error) {
	switch op {
	case 0x80: // PROTO
		var v []byte
		if v, err = m.take(1); err == nil && v[0] > 2 {
			err = fmt.Errorf("pickle protocol %d, 2 is read", v[0])
		}
	case '}':
		m.push(&dict{values: map[string]any{}})
	case ')':
		m.push(tuple{})
	case ']':
		m.push(list{})
	case '(':
		m.push(mark{})
	case 'N':
		m.push(nil)
	case 0x88, 0x89:
		m.push(op == 0x88)
	case 'K':
		err = m.number(1, false)
	case 'M':
		err = m.number(2, false)
	case 'J':
		err = m.number(4, true)
	case 0x8a: // LONG1
		var n []byte
		if n, err = m.take(1); err == nil && n[0] > 8 {
			return fmt.Errorf("a number of %d bytes", n[0])
		} else if err == nil {
			err = m.number(int(n[0]), true)
		}
	case 'G':
		_, err = m.take(8)
		m.push(other{})
	case 'X':
		err = m.text()
	case 'q', 'r', 'h', 'j':
		err = m.remember(op)
	case 't', 0x85, 0x86, 0x87, 'u', 's', 'e', 'a':
		err = m.gather(op)
	case 'c':
		err = m.name()
	case 'Q', 'R', 'b':
		err = m.build(op)
	default:
		err = fmt.Errorf("opcode 0x%02x is not one of a dictionary of tensors", op)
	}
	return err
}

func (m *machine) push(v any) { m.stack = append(m.stack, v) }

func (m *machine) pop() (any, error) {
	if len(m.stack) == 0 {
		return nil, fmt.Errorf("the stack is empty")
	}
	v := m.stack[len(m.stack)-1]
	m.stack = m.stack[:len(m.stack)-1]
	return v, nil
}

func (m *machine) take(n int) ([]byte, error) {
	if n > len(m.in)-m.at {
		return nil, fmt.Errorf("the pickle ends early")
	}
	b := m.in[m.at : m.at+n]
	m.at += n
	return b, nil
}

// number pushes a little-endian integer of n bytes, at most 8.
func (m *machine) number(n int, signed bool) error {
	v, err := m.little(n)
	if err != nil {
		return err
	}
	if signed {
		v = v << (64 - 8*n) >> (64 - 8*n)
	}
	m.push(v)
	return nil
}

// little reads a little-endian integer of n bytes.
func (m *machine) little(n int) (int64, error) {
	b, err := m.take(n)
	var wide [8]byte
	copy(wide[:], b)
	return int64(binary.LittleEndian.Uint64(wide[:])), err
}

func (m *machine) text() error {
	n, err := m.little(4)
	if err != nil {
		return err
	}
	if n > int64(len(m.in)-m.at) {
		return fmt.Errorf("a text of %d bytes", n)
	}
	b, err := m.take(int(n))
	m.push(string(b))
	return err
}

// remember stores the top of the stack in the memo, or pushes a value from there.
func (m *machine) remember(op byte) error {
	i, err := m.little(map[byte]int{'q': 1, 'h': 1, 'r': 4, 'j': 4}[op])
	if err != nil {
		return err
	}
	if op == 'q' || op == 'r' {
		if len(m.stack) == 0 {
			return fmt.Errorf("the stack is empty")
		}
		m.memo[i] = m.stack[len(m.stack)-1]
		return nil
	}
	v, ok := m.memo[i]
	if !ok {
		return fmt.Errorf("nothing is kept at %d", i)
	}
	m.push(v)
	return nil
}

// gather moves the values above the last mark, or as many as op says, into a tuple, a dictionary or a list.
func (m *machine) gather(op byte) error {
	n := map[byte]int{0x85: 1, 0x86: 2, 0x87: 3, 's': 2, 'a': 1}[op]
	from := len(m.stack) - n
	if n == 0 {
		for from = len(m.stack) - 1; from >= 0; from-- {
			if _, ok := m.stack[from].(mark); ok {
				break
			}
		}
	}
	if from < 0 {
		return fmt.Errorf("the stack is too short")
	}
	items := m.stack[from:]
	if len(items) > 0 {
		if _, ok := items[0].(mark); ok {
			items = items[1:]
		}
	}
	m.stack = m.stack[:from]
	switch op {
	case 'u', 's':
		if len(m.stack) == 0 || len(items)%2 != 0 {
			return fmt.Errorf("keys without values")
		}
		d, ok := m.stack[len(m.stack)-1].(*dict)
		if !ok {
			return fmt.Errorf("items for what is no dictionary")
		}
		for i := 0; i < len(items); i += 2 {
			if key, ok := items[i].(string); ok {
				if _, had := d.values[key]; !had {
					d.keys = append(d.keys, key)
				}
				d.values[key] = items[i+1]
			}
		}
	case 'e', 'a':
		if len(m.stack) == 0 {
			return fmt.Errorf("items without a list")
		}
		if _, ok := m.stack[len(m.stack)-1].(list); !ok {
			return fmt.Errorf("items for what is no list")
		}
	default:
		m.push(append(tuple{}, items...))
	}
	return nil
}

// name pushes the global of "module\nname\n". It returns an error for names that are not known.
func (m *machine) name() error {
	var words [2]string
	for i := range words {
		end := bytes.IndexByte(m.in[m.at:], '\n')
		if end < 0 {
			return fmt.Errorf("a name without an end")
		}
		words[i] = string(m.in[m.at : m.at+end])
		m.at += end + 1
	}
	g := global(words[0] + " " + words[1])
	if _, ok := globals[g]; !ok && !skippedStorages[g] {
		return fmt.Errorf("names %s, which is not part of a dictionary of tensors: the file is refused, as Python would "+
			"run it", strconv.Quote(short(words[0]+"."+words[1])))
	}
	m.push(g)
	return nil
}

// build turns persistent references into storages and what Python would call into dictionaries and tensors, and ignores
// attributes.
func (m *machine) build(op byte) error {
	v, err := m.pop()
	if err != nil {
		return err
	}
	args, _ := v.(tuple)
	if op == 'Q' {
		return m.storage(args)
	}
	f, err := m.pop()
	if err != nil {
		return err
	}
	if d, ok := f.(*dict); op == 'b' && ok { // attributes: the versions of modules
		m.push(d)
		return nil
	}
	switch g, _ := f.(global); {
	case op == 'R' && g == "collections OrderedDict" && args != nil && len(args) == 0:
		m.push(&dict{values: map[string]any{}})
	case op == 'R' && g == "torch._utils _rebuild_parameter" && len(args) > 0:
		m.push(args[0])
	case op == 'R' && g == "torch._utils _rebuild_tensor_v2" && len(args) > 3:
		return m.tensor(args)
	default:
		return fmt.Errorf("a call that makes no tensor")
	}
	return nil
}

// storage pushes the storage that a reference describes: ("storage", type, key, device, elements).
func (m *machine) storage(args tuple) error {
	if len(args) != 5 || args[0] != "storage" {
		return fmt.Errorf("a reference to what is no storage")
	}
	g, _ := args[1].(global)
	key, ok := args[2].(string)
	dtype, float := globals[g]
	switch {
	case skippedStorages[g]:
		m.push(other{})
	case ok && float && (dtype != 0 || g == "torch FloatStorage"):
		m.push(&storage{dtype, key})
	default:
		return fmt.Errorf("a storage of no type that is known")
	}
	return nil
}

// tensor pushes the tensor that arguments describe: (storage, offset, shape, strides, ...).
func (m *machine) tensor(args tuple) error {
	from, ok := args[0].(*storage)
	if _, whole := args[0].(other); whole {
		m.push(other{})
		return nil
	}
	offset, ok2 := args[1].(int64)
	shape, err := integers(args[2])
	stride, err2 := integers(args[3])
	if !ok || !ok2 || err != nil || err2 != nil {
		return fmt.Errorf("a tensor without storage, offset, shape or strides")
	}
	m.push(&tensor{from, offset, shape, stride})
	return nil
}

func integers(v any) (out []int64, err error) {
	t, ok := v.(tuple)
	for _, e := range t {
		n, whole := e.(int64)
		ok = ok && whole
		out = append(out, n)
	}
	if !ok {
		return nil, fmt.Errorf("no numbers")
	}
	return out, nil
}
