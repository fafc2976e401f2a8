package forecast_test

import (
	"reflect"
	"testing"

	"patchbay/models/dit"
	"patchbay/parallel/forecast"
)

// TestKeyKnowsEveryField checks that whatever a request asks of the ranks is part of the key under which its plan is
// kept.
func TestKeyKnowsEveryField(t *testing.T) {
	outside := map[string]bool{"Spec": true, "Device": true} // as the model and the devices
	var none forecast.Workload
	for _, f := range reflect.VisibleFields(reflect.TypeFor[forecast.Workload]()) {
		if !f.IsExported() || outside[f.Name] {
			continue
		}
		var w forecast.Workload
		v := reflect.ValueOf(&w).Elem().FieldByIndex(f.Index)
		switch f.Type.Kind() {
		case reflect.Int:
			v.SetInt(3)
		case reflect.Bool:
			v.SetBool(true)
		default:
			v.Set(reflect.MakeSlice(f.Type, 1, 1))
		}
		if w.Key() == none.Key() {
			t.Errorf("the key does not know %s", f.Name)
		}
	}
}

// TestKeyOfSame checks that the key is of values, not of where they are.
func TestKeyOfSame(t *testing.T) {
	made := func(net string, weight float32) forecast.Workload {
		return forecast.Workload{
			Spec: &dit.Spec{}, Text: []int{7}, Nets: []forecast.Net{{Key: net, Spec: &dit.Spec{}, Entries: []int{0}}},
			Keyframes: []dit.Keyframes{{Spans: [][2]float32{{0, 1}}, Weight: weight}},
		}
	}
	first, same := made("a", 1), made("a", 1)
	if first.Key() != same.Key() {
		t.Errorf("keys of the same: %q, %q", first.Key(), same.Key())
	}
	for _, other := range []forecast.Workload{made("b", 1), made("a", .5)} {
		if first.Key() == other.Key() {
			t.Errorf("one key of two: %q", first.Key())
		}
	}
}
