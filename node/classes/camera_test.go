package classes

import (
	"errors"
	"math"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// TestCameraAngles checks the words on both sides of every border between them, and cameras whose places follow from
// the angles alone.
func TestCameraAngles(t *testing.T) {
	run := func(around, above int64, zoom float64) (*pyjson.Object, string) {
		t.Helper()
		out, _, err := onValues(t, files.Roots{}, "CameraAngle", map[string]any{
			"horizontal_angle": around, "vertical_angle": above, "zoom": zoom, "view": "camera",
		})
		check(t, err)
		return out[0].(value.Camera).Info, out[1].(string)
	}
	for around, want := range map[int64]string{
		0: "front view", 22: "front view", 23: "front-right quarter view", 67: "front-right quarter view",
		68: "right side view", 112: "right side view", 113: "back-right quarter view", 157: "back-right quarter view",
		158: "back view", 202: "back view", 203: "back-left quarter view", 247: "back-left quarter view",
		248: "left side view", 292: "left side view", 293: "front-left quarter view", 337: "front-left quarter view",
		338: "front view", 360: "front view",
	} {
		if _, got := run(around, 0, 5); got != want+" eye-level shot medium shot" {
			t.Errorf("%d degrees: %q, want %q", around, got, want)
		}
	}
	for above, want := range map[int64]string{
		-30: "low-angle", -16: "low-angle", -15: "eye-level", 14: "eye-level", 15: "elevated", 44: "elevated",
		45: "high-angle", 60: "high-angle",
	} {
		if _, got := run(180, above, 5); got != "back view "+want+" shot medium shot" {
			t.Errorf("%d degrees above: %q, want %q", above, got, want)
		}
	}
	for zoom, want := range map[float64]string{
		0: "wide shot", 1.9: "wide shot", 2: "medium shot", 5.9: "medium shot", 6: "close-up", 10: "close-up",
	} {
		if _, got := run(90, 60, zoom); got != "right side view high-angle shot "+want {
			t.Errorf("zoom %v: %q, want %q", zoom, got, want)
		}
	}
	for _, c := range []struct {
		around, above     int64
		zoom              float64
		x, y, z, zoomedBy float64
	}{
		{0, 0, 0, 0, 0, 6, 1},
		{90, 0, 10, 6, 0, 0, 1.875},
		{180, 0, 4, 0, 0, -6, 1.35},
		{270, 0, 2, -6, 0, 0, 1.175},
		{0, 30, 8, 0, 3, 6 * math.Sqrt(0.75), 1.7},
		{90, -30, 5, 6 * math.Sqrt(0.75), -3, 0, 1.4375},
		{330, 60, 5, -1.5, 6 * math.Sqrt(0.75), 1.5 * math.Sqrt(3), 1.4375},
	} {
		info, _ := run(c.around, c.above, c.zoom)
		at := info.In("position")
		for _, p := range []struct{ got, want float64 }{
			{at.At("x").(float64), c.x},
			{at.At("y").(float64), c.y},
			{at.At("z").(float64), c.z},
			{info.At("zoom").(float64), c.zoomedBy},
		} {
			if !(math.Abs(p.got-p.want) <= 1e-12) {
				t.Errorf("%+v: camera %s", c, pyjson.Dump(info))
				break
			}
		}
	}
}

// TestCameraTravels checks that a client gets the camera as JSON, and the error for an angle beyond the limits.
func TestCameraTravels(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	given := map[string]any{"horizontal_angle": int64(0), "vertical_angle": int64(0), "zoom": 0.0}
	got := exec(t, run, "CameraAngle", given)
	const want = `{"position": {"x": 0.0, "y": 0.0, "z": 6.0}, "target": {"x": 0.0, "y": 0.0, "z": 0.0}, "zoom": 1.0, ` +
		`"cameraType": "perspective", "fov": 35.0}`
	if text := string(pyjson.Dump(got)); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	given["vertical_angle"] = int64(61)
	_, err = run.Exec(t.Context(), graph.ExecRequest{Class: "CameraAngle", Inputs: given}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Field != "vertical_angle" {
		t.Errorf("61 degrees: got %v, want an error about vertical_angle", err)
	}
}
