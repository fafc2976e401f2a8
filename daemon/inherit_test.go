package daemon

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestSettingsReachChildren checks that a worker and the process of a rank get every setting of the process that starts
// them, but for those that are said to be their own. Every field has a value that no other one has.
func TestSettingsReachChildren(t *testing.T) {
	var c Config
	filled := 0
	fill(t, reflect.ValueOf(&c).Elem(), &filled)
	c.Placement, c.Limits.Queued, c.Limits.Err = placementChildren, false, nil // the flags that were read
	inBoth := map[string]string{"Version": "of the child", "NATS": ""}         // which may contain a password
	for name, child := range map[string]struct {
		settings  *Config
		differing map[string]string
	}{
		"worker": {c.forWorker(), map[string]string{"Limits.Message": "256M", "Limits.Depth": "64"}},
		"rank": {c.forRank("cuda:2", 4096), map[string]string{
			"Devices": "cuda:2", "Rates": "", "Placement": "threads", "Hosts": "", "Schedule": "", "Ranks": "0",
			"Memory": "4096",
		}},
	} {
		got := Config{Version: "of the child", Store: "left over"}
		if err := got.Inherit(child.settings.argument()); err != nil {
			t.Fatal(err)
		}
		want := leaves(reflect.ValueOf(c), "")
		for path, v := range leaves(reflect.ValueOf(got), "") {
			mine, differs := child.differing[path]
			if !differs {
				mine, differs = inBoth[path]
			}
			if !differs {
				mine = want[path]
			}
			if v != mine && !strings.HasPrefix(path, "Access.") && path != "Limits.Queued" {
				t.Errorf("%s: %s is %q, want %q", name, path, v, mine)
			}
		}
	}
	if filled < 55 {
		t.Errorf("%d fields were filled", filled)
	}
	for _, bad := range []string{"{", `{"no_such_setting": 1}`, `{"workers": "two"}`} {
		if err := (&Config{}).Inherit(bad); err == nil || !strings.Contains(err.Error(), "--config") {
			t.Errorf("%s: got %v, want an error that names --config", bad, err)
		}
	}
}

// fill gives every field of a struct a value of its own.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Struct:
		*n--
		for i := range v.NumField() {
			if kind := v.Type().Field(i).Type.Kind(); kind != reflect.Interface && kind != reflect.Func { // the process's own
				fill(t, v.Field(i), n)
			}
		}
	case reflect.String:
		v.SetString(fmt.Sprint("value ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		if v.Type() == reflect.TypeFor[time.Duration]() {
			v.SetInt(int64(time.Duration(*n)*time.Second + 7))
			return
		}
		v.SetInt(int64(*n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case reflect.Map:
		key, of := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, n)
		fill(t, of, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, of)
	default:
		t.Fatalf("a setting of kind %s", v.Kind())
	}
}

// leaves returns the values of all fields of a struct, by path.
func leaves(v reflect.Value, path string) map[string]string {
	out := map[string]string{}
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		if path != "" {
			name = path + "." + name
		}
		if f.Kind() == reflect.Struct {
			for k, e := range leaves(f, name) {
				out[k] = e
			}
			continue
		}
		out[name] = fmt.Sprint(f.Interface())
	}
	return out
}
