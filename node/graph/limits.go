package graph

import (
	"math"

	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// Validate does not check linked values of INT and FLOAT inputs (nor does ComfyUI): a node that takes sizes from a
// PrimitiveInt must check them itself. Whole and Decimal return an input after that check. Like the others here, they
// panic with a failure, which becomes that of the node.

// Whole returns an INT input that is within the limits that its class declares.
func (c *Call) Whole(name string) int {
	n := c.Integer(name)
	c.checkLimits(name, int64(n))
	return n
}

// Decimal returns a FLOAT input that is finite and within the limits that its class declares.
func (c *Call) Decimal(name string) float64 {
	v := c.Float(name)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		panic(fault.Bad(name, "%v is not a finite number", v))
	}
	c.checkLimits(name, v)
	return v
}

func (c *Call) checkLimits(name string, v any) {
	in := find(c.Class.declared(func(n string) (any, bool) { v, ok := c.in[n]; return v, ok }), name)
	lo, hasLo := in.Options.Get("min")
	hi, hasHi := in.Options.Get("max")
	if (hasLo && compare(v, lo) < 0) || (hasHi && compare(v, hi) > 0) {
		panic(fault.Bad(name, "%v is not between %v and %v", v, lo, hi))
	}
}

// Flag returns a BOOLEAN input.
func (c *Call) Flag(name string) bool { return Arg[bool](c, name) }

// Latent returns a LATENT input that is not empty and has one layer.
func (c *Call) Latent(name string) *value.Latent {
	l := c.Layers(name)
	if err := l.Single(name); err != nil {
		panic(err)
	}
	return l
}

// Layers returns a LATENT input that is not empty and has no sound.
func (c *Call) Layers(name string) *value.Latent {
	l := c.WithSound(name)
	if l.Samples.Sound.Len() > 0 {
		panic(fault.Bad(name, "the latent has sound, which %s does not take: separate it from the video first",
			c.Class.Name))
	}
	return l
}

// WithSound returns a LATENT input that is not empty and may have several frames and sound.
func (c *Call) WithSound(name string) *value.Latent {
	l := Arg[*value.Latent](c, name)
	if l.Samples.Len() == 0 {
		panic(fault.Bad(name, "latent %v is empty", l.Samples.Shape()))
	}
	return l
}

// Mask returns a MASK input that is not empty.
func (c *Call) Mask(name string) *picture.Mask {
	m := Arg[*picture.Mask](c, name)
	if len(m.Data) == 0 {
		panic(fault.Bad(name, "mask [%d, %d, %d] is empty", m.B, m.Y, m.X))
	}
	return m
}

func (c *Call) Image(name string) *picture.Image { return Arg[*picture.Image](c, name) }

func (c *Call) Model(name string) *value.Model { return Arg[*value.Model](c, name) }

func (c *Call) Conditioning(name string) value.Conditioning { return Arg[value.Conditioning](c, name) }

func (c *Call) VAE(name string) *value.VAE { return Arg[*value.VAE](c, name) }

func (c *Call) Sigmas(name string) value.Sigmas { return Arg[value.Sigmas](c, name) }
