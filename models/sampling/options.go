package sampling

import (
	"fmt"
	"math"
	"reflect"
	"slices"
)

// Option describes one parameter of a sampler.
type Option struct {
	// Name is ComfyUI's name.
	Name string
	// Default is a float64, int, bool or string, which determines the option's type.
	Default any
	// Min and Max are the inclusive bounds of numbers.
	Min, Max float64
	// Allowed are the values of a string option.
	Allowed []string
}

// Options holds the values of a sampler's options, checked against its Method. The zero value means the defaults.
type Options struct {
	owner  string
	values map[string]any
}

// Float returns a float option. It panics if the sampler has no such option.
func (o Options) Float(name string) float64 { return option[float64](o, name) }

// Int returns an integer option. It panics if the sampler has no such option.
func (o Options) Int(name string) int { return option[int](o, name) }

// Bool returns a boolean option. It panics if the sampler has no such option.
func (o Options) Bool(name string) bool { return option[bool](o, name) }

// Text returns a string option. It panics if the sampler has no such option.
func (o Options) Text(name string) string { return option[string](o, name) }

func option[T any](o Options, name string) T {
	v, ok := o.values[name].(T)
	if !ok {
		panic(fmt.Sprintf("sampling: sampler %q has no option %q of type %T", o.owner, name, v))
	}
	return v
}

// Defaults returns the method's options with ComfyUI's default values.
func (e Method) Defaults() Options {
	o := Options{owner: e.Name, values: map[string]any{}}
	for _, opt := range e.Options {
		o.values[opt.Name] = opt.Default
	}
	return o
}

// NewOptions checks given values against the method's options and fills in the defaults. Numbers may have any Go number
// type. Unknown names, wrong types and values out of range are errors that name what is allowed.
func (e Method) NewOptions(given map[string]any) (Options, error) {
	o := e.Defaults()
	for name, value := range given {
		at := slices.IndexFunc(e.Options, func(opt Option) bool { return opt.Name == name })
		if at < 0 {
			return Options{}, fmt.Errorf("sampler %s: option %q is unknown: want one of %q", e.Name, name,
				names(e.Options, func(opt Option) string { return opt.Name }))
		}
		v, err := e.Options[at].convert(value)
		if err != nil {
			return Options{}, fmt.Errorf("sampler %s: option %s: %w", e.Name, name, err)
		}
		o.values[name] = v
	}
	return o, nil
}

// names returns the names of the entries of a list, in order.
func names[T any](list []T, of func(T) string) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = of(e)
	}
	return out
}

func (o Option) convert(value any) (any, error) {
	switch o.Default.(type) {
	case bool:
		if v, ok := value.(bool); ok {
			return v, nil
		}
		return nil, fmt.Errorf("%v: want true or false", value)
	case string:
		if v, ok := value.(string); ok && slices.Contains(o.Allowed, v) {
			return v, nil
		}
		return nil, fmt.Errorf("%v: want one of %q", value, o.Allowed)
	}
	v, ok := number(value)
	if !ok || math.IsNaN(v) || v < o.Min || v > o.Max {
		return nil, fmt.Errorf("%v: want a number from %v to %v", value, o.Min, o.Max)
	}
	if _, whole := o.Default.(int); !whole {
		return v, nil
	}
	if v != math.Trunc(v) {
		return nil, fmt.Errorf("%v: want a whole number from %v to %v", value, o.Min, o.Max)
	}
	return int(v), nil
}

// number converts any Go number to float64.
func number(value any) (float64, bool) {
	switch v := reflect.ValueOf(value); {
	case v.CanFloat():
		return v.Float(), true
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	}
	return 0, false
}
