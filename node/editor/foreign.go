package editor

import (
	"fmt"

	"patchbay/node/pyjson"
)

// foreign names the models that classes of ComfyUI are made for which this program has not.
var foreign = map[string]string{
	"QuadrupleCLIPLoader": "HiDream", "CLIPTextEncodeHiDream": "HiDream",
	"LotusConditioning": "Lotus (a UNet of Stable Diffusion 2)",
}

// NotFound says in ComfyUI's words that a class is unknown, or what it is for.
func NotFound(class, title string) string {
	title = pyjson.Excerpt(title)
	if models, ok := foreign[class]; ok {
		return fmt.Sprintf("Node '%s' (%s) is made for %s, which is not supported.", title, class, models)
	}
	return fmt.Sprintf("Node '%s' not found. The custom node may not be installed.", title)
}
