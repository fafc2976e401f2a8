package forecast

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"patchbay/engine/profile"
	"patchbay/parallel/plan"
)

// Machine is one kind of device as it was measured: rates of a rank, and of the link to its neighbours. Stages are
// balanced and plans are chosen by it.
type Machine struct {
	Device Device
	Link   Link
}

// machineFile is how a Machine is written: devices.json with one device and at most one link.
type machineFile struct {
	Devices []Device `json:"devices"`
	Links   []Link   `json:"links"`
}

// NewMachine returns a known device with its usual link ("cpu", or any that ParseCluster takes), to be replaced by what
// is measured.
func NewMachine(device string) (Machine, error) {
	f, err := ParseCluster(device)
	return Machine{Device: f.Device, Link: f.Link}, err
}

// ReadMachine reads a file that Machine.JSON wrote: the fields of devices.json, all rates of the device given. Without
// a link it is the usual one of a device of that name, or of "cpu". Errors name the field and what it may hold.
func ReadMachine(data []byte) (Machine, error) {
	var m Machine
	var file machineFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return m, fmt.Errorf("%w: want {\"devices\": [{...}], \"links\": [{...}]} with the fields of "+
			"parallel/forecast/devices.json, as `patchbay bench step --save` writes it", err)
	}
	if len(file.Devices) != 1 || len(file.Links) > 1 {
		return m, fmt.Errorf("devices has %d entries and links %d: want one device and at most one link",
			len(file.Devices), len(file.Links))
	}
	m.Device = file.Devices[0]
	if len(file.Links) == 1 {
		m.Link = file.Links[0]
	} else {
		usual, err := NewMachine("cpu")
		if known, e := NewMachine(m.Device.Name); e == nil {
			usual = known
		} else if err != nil {
			return m, err
		}
		m.Link = usual.Link
	}
	return m, m.Check()
}

// Check refuses values that no prediction can be made with.
func (m Machine) Check() error {
	d, l := m.Device, m.Link
	for _, f := range []struct {
		field string
		value float64
	}{
		{"devices[0].gemm", d.GEMM},
		{"devices[0].attention", d.Attention},
		{"devices[0].traffic", d.Traffic},
		{"links[0].bandwidth", l.Bandwidth},
	} {
		if !(f.value > 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("%s is %v: want a rate in operations or bytes per second, more than 0", f.field, f.value)
		}
	}
	for _, f := range []struct {
		field string
		value float64
	}{{"devices[0].launch", d.Launch}, {"devices[0].handover", d.Handover}, {"links[0].latency", l.Latency}} {
		if !(f.value >= 0 && f.value <= 1) {
			return fmt.Errorf("%s is %v: want seconds from 0 to 1", f.field, f.value)
		}
	}
	switch {
	case strings.TrimSpace(d.Name) == "":
		return fmt.Errorf("devices[0].name is empty: want a name")
	case !(d.WeightBytes > 0 && d.WeightBytes <= 8):
		return fmt.Errorf("devices[0].weight_bytes is %g: want more than 0, at most 8", d.WeightBytes)
	case d.ValueBytes != 2 && d.ValueBytes != 4:
		return fmt.Errorf("devices[0].value_bytes is %d: want 2 or 4", d.ValueBytes)
	case d.Memory < 0 || d.Reserved < 0 || d.Reserved > 0 && d.Reserved >= d.Memory:
		return fmt.Errorf("devices[0].memory is %d with reserved %d: want bytes, 0 for no limit, and less of them reserved",
			d.Memory, d.Reserved)
	case !(l.AllToAll > 0 && l.AllToAll <= 1):
		return fmt.Errorf("links[0].all_to_all is %v: want a part of the bandwidth, more than 0 and at most 1", l.AllToAll)
	case l.Island < 0 || l.Island > 0 && !(l.Across > 0):
		return fmt.Errorf("links[0].island is %d with across %v: want 0, or devices of a switch and bytes per second "+
			"between switches", l.Island, l.Across)
	}
	return nil
}

// JSON returns the file that ReadMachine reads.
func (m Machine) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(machineFile{[]Device{m.Device}, []Link{m.Link}}, "", " ")
	return append(b, '\n'), err
}

// AddSpan adds a span of a profile to the kind of work that it is. Preparing texts and modulations, copies to and from
// the host, and exchanges are of no kind.
func (t *RankTime) AddSpan(s profile.Span) {
	at := &t.Other
	switch s.Op {
	case "Upload", "Download":
		return
	case "Linear":
		at = &t.Products
	case "Attention":
		at = &t.Attention
	}
	switch s.Layer {
	case "embed", "qkv", "attention", "mlp", "head":
		*at += s.Took.Seconds()
	}
}

// Measure replaces the rates of m by what a profiled run of w on one rank shows: floating point operations of its
// products and attentions, and bytes of its element-wise work as the planner counts them, by the time that such
// operations took from embedding to head. valueBytes is the size of an activation. It refuses spans without products or
// attention.
func (m *Machine) Measure(w Workload, spans []profile.Span, valueBytes int) error {
	var t RankTime
	for _, s := range spans {
		t.AddSpan(s)
	}
	products, attentions, rest := t.Products, t.Attention, t.Other
	if products <= 0 || attentions <= 0 || rest <= 0 {
		return fmt.Errorf("measure rates: the profile has %.3g s of products, %.3g s of attention and %.3g s of other "+
			"work: want some of each, from one rank", products, attentions, rest)
	}
	d := m.Device
	d.ValueBytes = valueBytes
	c := newCosts(NewPartition(w, plan.OneRank()), Cluster{Device: d, Link: m.Link, Hosts: 1, PerHost: 1})
	l, n := c.laneLoad(plan.Coord{}, 0, plan.Micro{Whole: true}), float64(w.Evaluations)
	d.GEMM, d.Attention, d.Traffic = n*l.gemm/products, n*l.attention/attentions,
		n*l.bytes/rest
	m.Device = d
	return nil
}
