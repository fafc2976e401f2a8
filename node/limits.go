package node

import (
	"math"

	"patchbay/node/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// Linked values of INT and FLOAT inputs are not checked by Validate (ComfyUI does not either): a node that takes sizes from a PrimitiveInt must look
// at them itself. whole and decimal return an input after that check; what they throw becomes the failure of the node.

// whole returns an INT input that lies between the limits that its class declares.
func (c *Call) whole(name string) int {
	n := c.integer(name)
	if v, isBig := c.in[name].(uint64); isBig && v > math.MaxInt64 {
		n = math.MaxInt64
	}
	c.checkLimits(name, int64(n))
	return n
}

// decimal returns a FLOAT input that is finite and lies between the limits that its class declares.
func (c *Call) decimal(name string) float64 {
	v := c.float(name)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		panic(fault.At(fault.CodeBadInput, name, "%s: %v is not a finite number", name, v))
	}
	c.checkLimits(name, v)
	return v
}

func (c *Call) checkLimits(name string, v any) {
	in := c.Class.input(name)
	lo, hasLo := in.Options.Get("min")
	hi, hasHi := in.Options.Get("max")
	if (hasLo && compare(v, lo) < 0) || (hasHi && compare(v, hi) > 0) {
		panic(fault.At(fault.CodeBadInput, name, "%s: %v is not between %v and %v", name, v, lo, hi))
	}
}

// flag returns a BOOLEAN input.
func (c *Call) flag(name string) bool { return arg[bool](c, name) }

// checkSize refuses results of more values than a latent or a batch of pictures may have.
func checkSize(field string, sides ...int) error {
	n := 1.0
	for _, s := range sides {
		n *= float64(s)
	}
	if n <= value.MaxValues {
		return nil
	}
	return fault.At(fault.CodeBadInput, field, "%s: the result %v has %.0f values, this program holds at most %d", field, sides, n, value.MaxValues)
}

// sliced resolves the bounds of a Python slice [from:to] of n items: negative bounds count from the end, all are cut to 0..n.
func sliced(n, from, to int) (int, int) {
	bound := func(i int) int {
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	from, to = bound(from), bound(to)
	return from, max(from, to)
}

// rounded rounds as Python's round does, halves to even.
func rounded(v float64) int { return int(math.RoundToEven(v)) }

// latent returns a LATENT input that holds something.
func (c *Call) latent(name string) *value.Latent {
	l := arg[*value.Latent](c, name)
	if l.Samples.Len() == 0 {
		s := l.Samples
		panic(fault.At(fault.CodeBadInput, name, "%s: latent [%d, %d, %d, %d] is empty", name, s.B, s.C, s.Y, s.X))
	}
	return l
}

// mask returns a MASK input that holds something.
func (c *Call) mask(name string) *picture.Mask {
	m := arg[*picture.Mask](c, name)
	if len(m.Data) == 0 {
		panic(fault.At(fault.CodeBadInput, name, "%s: mask [%d, %d, %d] is empty", name, m.B, m.Y, m.X))
	}
	return m
}
