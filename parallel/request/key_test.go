package request

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"patchbay/models/sampling"
	"patchbay/parallel/resume"
)

// left are the fields that ResumeKey leaves out, and why no output depends on them.
var left = map[string]string{
	".Plan": "the plan that was chosen is given", ".Preview": "only shows", ".Profile": "only measures",
	".Resume": "where the log is",
}

// filled returns a request in which every field is set, and every list has two items.
func filled(t *testing.T, sampler string) *Request {
	r := &Request{}
	fill(t, reflect.ValueOf(r).Elem())
	method, err := sampling.FindSampler(sampler)
	if err != nil {
		t.Fatal(err)
	}
	r.Options = method.Defaults()
	r.Sampling = flow(t, 3)
	return r
}

func flow(t *testing.T, shift float64) *sampling.ModelSampling {
	s, err := sampling.NewFlow(shift, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fill(t *testing.T, v reflect.Value) {
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
		fill(t, v.Index(1))
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Pointer:
		if slices.Contains([]reflect.Type{
			reflect.TypeFor[*sampling.ModelSampling](), reflect.TypeFor[*resume.Folder](),
		}, v.Type()) {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	}
}

// eachLeaf changes every value below v, calls visit with its path, and changes it back.
func eachLeaf(v reflect.Value, path string, visit func(path string)) {
	if v.Type() == reflect.TypeFor[Model]() {
		v, path = v.FieldByName("Key"), path+".Key"
	}
	was := reflect.New(v.Type()).Elem()
	was.Set(v)
	change := func() { visit(path); v.Set(was) }
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
		change()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
		change()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
		change()
	case reflect.Float32, reflect.Float64:
		v.SetFloat(v.Float() + 0.25)
		change()
	case reflect.String:
		v.SetString(v.String() + "x")
		change()
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				eachLeaf(f, path+"."+v.Type().Field(i).Name, visit)
			}
		}
	case reflect.Slice:
		v.Set(v.Slice(0, 1))
		change()
		v.Set(reflect.Zero(v.Type()))
		change()
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			eachLeaf(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	case reflect.Pointer:
		if v.IsNil() || v.Type() == reflect.TypeFor[*sampling.ModelSampling]() {
			return // its fields are not ours to change
		}
		v.SetZero()
		change()
		eachLeaf(v.Elem(), path, visit)
	case reflect.Func: // none is of a request, but for the ways of loading a model
	default:
		panic(fmt.Sprintf("%s is a %s, which this test does not change", path, v.Type()))
	}
}

// TestResumeKey checks that every value in a request is part of its key, whatever fields it gets, but for those that no
// output depends on.
func TestResumeKey(t *testing.T) {
	r := filled(t, "dpmpp_2m_sde")
	key := r.ResumeKey("build", "cpu", "ulysses=2")
	if again := filled(t, "dpmpp_2m_sde").ResumeKey("build", "cpu", "ulysses=2"); again != key {
		t.Fatal("equal requests have different keys")
	}
	changes, same := 0, map[string]bool{}
	eachLeaf(reflect.ValueOf(r).Elem(), "", func(path string) {
		changes++
		if r.ResumeKey("build", "cpu", "ulysses=2") == key {
			same[path] = true
		}
	})
	for path := range same {
		if left[path] == "" {
			t.Errorf("a request with another %s has the same key", path)
		}
	}
	if !same[".Plan"] || !same[".Preview"] || !same[".Profile"] || changes < 150 {
		t.Errorf("of %d changes these left the key as it was: %v", changes, same)
	}
	if r.ResumeKey("build", "cpu", "") == key || r.ResumeKey("other", "cpu", "ulysses=2") == key ||
		r.ResumeKey("buildc", "pu", "ulysses=2") == key {
		t.Error("another plan, build or device has the same key")
	}
	other := *r
	if other.Sampling = flow(t, 4); other.ResumeKey("build", "cpu", "ulysses=2") == key {
		t.Error("another shift of the model sampling has the same key")
	}
	method, _ := sampling.FindSampler("dpmpp_2m_sde")
	other = *r
	var err error
	if other.Options, err = method.NewOptions(map[string]any{"eta": 0.5}); err != nil {
		t.Fatal(err)
	}
	if other.ResumeKey("build", "cpu", "ulysses=2") == key {
		t.Error("another eta of the sampler has the same key")
	}
	other = *r
	other.Latent.Data = []float32{math.Float32frombits(1 << 31), 0}
	if other.ResumeKey("build", "cpu", "ulysses=2") == key {
		t.Error("-0 and 0 have the same key")
	}
}
