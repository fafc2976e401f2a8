package files

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/fault"
)

// Public returns text with the paths of the operator's folders replaced by their names: "models/vae/ae.sft" for a file
// below any models folder, and input, output, temp and ComfyUI likewise.
func (r *Roots) Public(text string) string {
	names := map[string]string{}
	add := func(path, name string) {
		if path == "" || filepath.Clean(path) == "/" {
			return
		}
		forms := []string{path, filepath.Clean(path)}
		if abs, err := filepath.Abs(path); err == nil {
			forms = append(forms, abs)
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			forms = append(forms, real)
		}
		for _, form := range forms {
			if filepath.IsAbs(form) {
				names[form] = name
			}
		}
	}
	for _, m := range r.Models {
		add(m, "models")
	}
	add(r.Input, "input")
	add(r.Output, "output")
	add(r.Temp, "temp")
	add(r.ComfyUI, "ComfyUI")
	longest := func(a, b string) int { return len(b) - len(a) } // one may lie inside another
	for _, p := range slices.SortedFunc(maps.Keys(names), longest) {
		text = strings.ReplaceAll(text, p, names[p])
	}
	return text
}

// Publish takes the operator's folders out of the message and details of a failure, which clients see. The original
// becomes the cause, for the operator's log, unless there is a cause already.
func (r *Roots) Publish(f *fault.Error) *fault.Error {
	message, details := r.Public(f.Text), r.Public(f.Details)
	if message == f.Text && details == f.Details {
		return f
	}
	public := *f
	public.Text, public.Details = message, details
	if f.Cause == nil {
		inner := *f
		public.Cause = &inner
	}
	return &public
}
