package plan

import (
	"fmt"
	"os"
	"slices"

	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/family"
	"patchbay/node/files"
	"patchbay/node/value"
	"patchbay/parallel/forecast"
)

// blocksPatch is the value of --patch that stands for the model patch of a family without a file.
const blocksPatch = "blocks"

// nets adds what --control and --patch name to a workload: nets, on all entries, and the rows in front of its text.
// stored is the bytes per weight of what is in no file.
func (f *Flags) nets(w *forecast.Workload, stored float64) error {
	base := w.Spec
	add := func(flag, name, kind string, shaped func(*family.Family) (*control.Net, error)) error {
		n, bytes, err := (*value.ModelPatch)(nil), int64(0), error(nil)
		if _, missing := os.Stat(name); missing == nil {
			n, err = f.netOf(kind, name)
		} else if fam, ok := models.Named(base.Family); ok {
			var made *control.Net
			if made, err = shaped(&fam); err == nil {
				n = &value.ModelPatch{ControlNet: value.ControlNet{Name: name, Net: made}}
				bytes = int64(stored * float64(made.Spec.Params))
			}
		}
		if err != nil {
			return fmt.Errorf("--%s %s: %w", flag, name, err)
		}
		if err := n.Forecast(w); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		if n.Net == nil {
			return nil
		}
		net := &w.Nets[len(w.Nets)-1]
		if bytes > 0 {
			net.Key, net.Bytes = name, bytes
		}
		net.Bytes += int64(stored * float64(n.Lacks)) // parts that it takes from the model, if that is no file
		return nil
	}
	for _, name := range f.controls {
		if err := add("control", name, files.KindControl, func(fam *family.Family) (*control.Net, error) {
			double, single := 0, 0
			if n, err := fmt.Sscanf(name+"+0", "%d+%d", &double, &single); n != 2 || err != nil {
				return nil, fmt.Errorf("want a file, or double and single blocks of the model that the net has copied, as in 5+10")
			}
			return control.Hypothetical(fam, base, double, single)
		}); err != nil {
			return err
		}
	}
	for _, name := range f.patches {
		if err := add("patch", name, files.KindModelPatch, func(fam *family.Family) (*control.Net, error) {
			if name != blocksPatch {
				return nil, fmt.Errorf("want a file, or %q for layers behind all blocks", blocksPatch)
			}
			return control.HypotheticalPatch(fam, base)
		}); err != nil {
			return err
		}
	}
	return nil
}

// netOf describes a file of a kind from its header, together with the model if that is a file too.
func (f *Flags) netOf(kind, path string) (p *value.ModelPatch, err error) {
	err = files.ReadHeader(kind, path, false, func(h files.Header) (err error) {
		p, err = value.OpenNet(kind, h, f.opened)
		return err
	})
	return p, err
}

// beside returns the names of the nets that run beside the model.
func (f *Flags) netNames() []string { return slices.Concat(f.controls, f.patches) }
