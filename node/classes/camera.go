package classes

import (
	"math"
	"strings"

	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// cameraClasses returns the classes of cameras in a scene.
func cameraClasses() []graph.Class {
	return []graph.Class{{
		Name: "CameraAngle", Display: "Compose Camera Angle Prompt", Module: "comfy_extras.nodes_camera_angle",
		Category:    "3d",
		Aliases:     "multi angle, camera view, orbit camera, shot angle, camera prompt",
		Description: "Says in the words of prompts from where a camera looks at a subject, and gives that camera.",
		Inputs: []graph.Input{
			graph.Int("horizontal_angle", "degrees around it: 0 before it, 90 at its right side, 180 behind it", 0, 0, 360, 1),
			graph.Int("vertical_angle", "degrees above it, or below if it is below 0", 0, -30, 60, 1),
			graph.Float("zoom", "from 0, which shows its surroundings, to 10, which is close", 5, 0, 10, 0.1),
			graph.Link("image", "IMAGE", "of the preview in the editor").AsOptional(),
			graph.Number("view", "STRING", "", "widgetType", "CAMERA_ANGLE_VIEW", "default", "", "socketless", true,
				"multiline", false).AsOptional(),
		},
		Outputs: []graph.Slot{{Name: "camera_info", Type: "LOAD3D_CAMERA"}, {Name: "prompt", Type: "STRING"}},
		Run:     cameraAngle,
	}}
}

// cameraAngle names eighths of the way around, which begin in the middle between their names, and ranges of the other
// two. The camera is 6 units away from the origin, where the subject is, and zooms by up to 1.875.
func cameraAngle(c *graph.Call) ([]any, error) {
	around := min(360, max(0, c.Integer("horizontal_angle")))
	above := min(60, max(-30, c.Integer("vertical_angle")))
	zoom := c.Decimal("zoom")
	if !(zoom < 10) { // NaN too, as in Python
		zoom = 10
	}
	zoom = max(0, zoom)
	sides := []string{
		"front view", "front-right quarter view", "right side view", "back-right quarter view", "back view",
		"back-left quarter view", "left side view", "front-left quarter view",
	}
	height, distance := "high-angle shot", "close-up"
	switch {
	case above < -15:
		height = "low-angle shot"
	case above < 15:
		height = "eye-level shot"
	case above < 45:
		height = "elevated shot"
	}
	switch {
	case zoom < 2:
		distance = "wide shot"
	case zoom < 6:
		distance = "medium shot"
	}
	sinAround, cosAround := math.Sincos(float64(around) * (math.Pi / 180))
	sinAbove, cosAbove := math.Sincos(float64(above) * (math.Pi / 180))
	const away = 6.0
	point := func(x, y, z float64) *pyjson.Object { return pyjson.NewObject("x", x, "y", y, "z", z) }
	info := pyjson.NewObject(
		"position", point(away*cosAbove*sinAround, away*sinAbove, away*cosAbove*cosAround), "target", point(0, 0, 0),
		"zoom", 1+0.875*(zoom/10), "cameraType", "perspective", "fov", 35.0)
	side := sides[(2*(around%360)+45)/90%8]
	return []any{value.Camera{Info: info}, strings.Join([]string{side, height, distance}, " ")}, nil
}
