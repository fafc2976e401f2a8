package hardware

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Machine holds what was measured on a machine: the rates of a rank and of the link to its neighbors. Stages are
// balanced, work is divided and plans are chosen by these.
type Machine struct {
	Device Device
	Others []Device // one of each other kind
	Link   Interconnect
	Pairs  []Pair // of devices that exchange by Link, each pair once; nil: not measured
}

// Between returns Cluster.Between for ranks on devices named as in --devices; nil if no pair was measured. Pairs that
// were not measured get the rates of Link.
func (m *Machine) Between(devices []string) (ways [][]Pair) {
	if m.Pairs == nil {
		return nil
	}
	for _, a := range devices {
		row := make([]Pair, 0, len(devices))
		for _, b := range devices {
			way := Pair{A: a, B: b, Bandwidth: m.Link.Bandwidth, Latency: m.Link.Latency}
			for _, p := range m.Pairs {
				if p.A == a && p.B == b || p.A == b && p.B == a {
					way.Bandwidth, way.Latency = p.Bandwidth, p.Latency
				}
			}
			row = append(row, way)
		}
		ways = append(ways, row)
	}
	return ways
}

// Paired returns the devices in Pairs, in order of appearance.
func (m *Machine) Paired() (devices []string) {
	for _, p := range m.Pairs {
		for _, d := range []string{p.A, p.B} {
			if !slices.Contains(devices, d) {
				devices = append(devices, d)
			}
		}
	}
	return devices
}

// Kind returns the device with the given name in any case, or the only device whatever its name.
func (m *Machine) Kind(name string) (Device, error) {
	for _, d := range m.kinds() {
		if strings.EqualFold(d.Name, name) || m.Others == nil {
			return d, nil
		}
	}
	return Device{}, fmt.Errorf("no rates of %s, but of %s: `patchbay bench step --save` on it adds them", name,
		strings.Join(names(m.kinds(), func(d Device) string { return d.Name }), ", "))
}

func (m *Machine) kinds() []Device { return append([]Device{m.Device}, m.Others...) }

// For returns a copy of m with d as Device. Other devices with the name of d are left out.
func (m *Machine) For(d Device) *Machine {
	out := *m
	out.Device, out.Others = d, nil
	for _, o := range m.kinds() {
		if !strings.EqualFold(o.Name, d.Name) {
			out.Others = append(out.Others, o)
		}
	}
	return &out
}

// Site describes the devices of a machine, or of several that have met, in the order of ranks.
type Site struct {
	Devices []Device     `json:"devices,omitempty"` // by place; nil: not known
	Link    Interconnect `json:"link"`              // between the devices of one machine, of several the slowest
	GPUs    bool         `json:"gpus,omitempty"`    // the devices are GPUs; of several machines, those of the first
}

// Check returns an error if no prediction for the given number of places is possible with the site.
func (s *Site) Check(places int) error {
	if s.Devices == nil {
		return nil
	}
	if len(s.Devices) != places {
		return fmt.Errorf("it tells of %d devices for %d places", len(s.Devices), places)
	}
	for i, d := range s.Devices {
		if err := d.check(s.Link, i); err != nil {
			return err
		}
	}
	return nil
}

// Fastest returns the GEMM rate of the first device, by which sites are sorted; 0: not known.
func (s *Site) Fastest() float64 {
	if s.Devices == nil {
		return 0
	}
	return s.Devices[0].GEMM
}

// Join returns the site of machines whose ranks follow one another. It is empty if one of the sites is not known.
func Join(sites []Site) (all Site) {
	for i, s := range sites {
		if s.Devices == nil {
			return Site{}
		}
		if i == 0 || s.Link.Bandwidth < all.Link.Bandwidth {
			all.Link = s.Link
		}
		all.Devices = append(all.Devices, s.Devices...)
		all.GPUs = sites[0].GPUs
	}
	return all
}

// Survey is what is known of the processes that ranks run in, as reported and measured when they last met.
type Survey struct {
	Site
	Remote bool  // they run on other machines
	Places []int // number of places in each process; nil: they have not met
	// Bandwidth is the bytes per second that one machine receives while it sends as many, 0: not measured. Latency is
	// the seconds of a message.
	Bandwidth, Latency float64
}

// At returns f with the devices of a site, if these are known.
func (f Cluster) At(s Site) Cluster {
	if s.Devices == nil {
		return f
	}
	f.Device, f.Mixed, f.Link, f.Between = s.Devices[0], s.Devices, s.Link, nil
	return f.plain()
}

// Free returns how many bytes of a device ranks may take, 0: no limit is known.
func (d *Device) Free() int64 { return max(0, d.Memory-d.Reserved) }

// Bounded returns d with its memory limited to most bytes for a rank. If most is 0, only reserve bytes are left out.
func (d Device) Bounded(most, reserve int64) Device {
	if d.Memory > 0 {
		d.Reserved = min(reserve, d.Memory-1)
	}
	if most > 0 && (d.Memory == 0 || most < d.Memory-d.Reserved) {
		d.Memory, d.Reserved = most, 0
	}
	return d
}

// machineFile is the file format of a Machine: that of devices.json, with a device of each kind and at most one link.
type machineFile struct {
	Devices []Device       `json:"devices"`
	Links   []Interconnect `json:"links"`
	Pairs   []Pair         `json:"pairs,omitempty"`
}

// NewMachine returns a known device with its usual link ("cpu", or any that ParseCluster takes), to be replaced by
// measured rates.
func NewMachine(device string) (Machine, error) {
	f, err := ParseCluster(device)
	return Machine{Device: f.Device, Link: f.Link}, err
}

// CPU is NewMachine for the CPU, which is always known.
func CPU() Machine {
	m, _ := NewMachine("cpu")
	return m
}

// ReadMachine reads a file that Machine.JSON wrote. It has the fields of devices.json and must give all rates of the
// device. Without a link it gets the usual one of a device of that name, or of "cpu". Errors name the field and its
// limits.
func ReadMachine(data []byte) (Machine, error) {
	var m Machine
	var file machineFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return m, fmt.Errorf("%w: want {\"devices\": [{...}], \"links\": [{...}]} with the fields of "+
			"parallel/hardware/devices.json, as `patchbay bench step --save` writes it", err)
	}
	if len(file.Devices) == 0 || len(file.Links) > 1 {
		return m, fmt.Errorf("devices has %d entries and links %d: want a device of each kind and at most one link",
			len(file.Devices), len(file.Links))
	}
	m.Device, m.Pairs = file.Devices[0], file.Pairs
	m.Others = append(m.Others, file.Devices[1:]...) // stays nil if there is only one
	if len(file.Links) == 1 {
		m.Link = file.Links[0]
	} else {
		usual, err := NewMachine(m.Device.Name)
		if err != nil {
			usual = CPU()
		}
		m.Link = usual.Link
	}
	return m, m.Check()
}

// Check returns an error for values that allow no predictions and for two devices of one name.
func (m Machine) Check() error {
	for i, p := range m.Pairs {
		at := fmt.Sprintf("pairs[%d].", i)
		switch {
		case p.A == "" || p.B == "":
			return fmt.Errorf("%sa is %q and b %q: want the names of two devices, as in cuda:0", at, p.A, p.B)
		case !(p.Bandwidth > 0) || math.IsInf(p.Bandwidth, 0):
			return fmt.Errorf("%sbandwidth is %v: want bytes per second, more than 0", at, p.Bandwidth)
		case !(p.Latency >= 0 && p.Latency <= 1):
			return fmt.Errorf("%slatency is %v: want seconds from 0 to 1", at, p.Latency)
		}
	}
	seen := map[string]bool{}
	for i, d := range m.kinds() {
		name := strings.ToLower(d.Name)
		if err := d.check(m.Link, i); err != nil || seen[name] {
			return cmp.Or(err, fmt.Errorf("devices[%d].name is %q again: want one device of each name", i, d.Name))
		}
		seen[name] = true
	}
	return nil
}

// check is Machine.Check for the link and one device, which is entry n of the file.
func (d *Device) check(l Interconnect, n int) error {
	at := fmt.Sprintf("devices[%d].", n)
	for _, f := range []struct {
		field string
		value float64
	}{
		{at + "gemm", d.GEMM},
		{at + "attention", d.Attention},
		{at + "traffic", d.Traffic},
		{"links[0].bandwidth", l.Bandwidth},
	} {
		if !(f.value > 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("%s is %v: want a rate in operations or bytes per second, more than 0", f.field, f.value)
		}
	}
	for _, f := range []struct {
		field string
		value float64
	}{{at + "launch", d.Launch}, {at + "handover", d.Handover}, {"links[0].latency", l.Latency}} {
		if !(f.value >= 0 && f.value <= 1) {
			return fmt.Errorf("%s is %v: want seconds from 0 to 1", f.field, f.value)
		}
	}
	switch {
	case strings.TrimSpace(d.Name) == "":
		return fmt.Errorf("%sname is empty: want a name", at)
	case !(d.WeightBytes > 0 && d.WeightBytes <= 8):
		return fmt.Errorf("%sweight_bytes is %g: want more than 0, at most 8", at, d.WeightBytes)
	case !(d.ProductRows >= 0 && d.ProductRows <= 1e6):
		return fmt.Errorf("%sproduct_rows is %v: want rows from 0 to 1000000", at, d.ProductRows)
	case d.HeadStep < 0 || d.HeadStep > 256:
		return fmt.Errorf("%shead_step is %d: want 0 to 256", at, d.HeadStep)
	case d.BatchRows < 0:
		return fmt.Errorf("%stogether is %d: want token rows, or 0", at, d.BatchRows)
	case d.ValueBytes != 2 && d.ValueBytes != 4:
		return fmt.Errorf("%svalue_bytes is %d: want 2 or 4", at, d.ValueBytes)
	case d.Memory < 0 || d.Reserved < 0 || d.Reserved > 0 && d.Reserved >= d.Memory:
		return fmt.Errorf("%smemory is %d with reserved %d: want bytes, 0 for no limit, and less of them reserved", at,
			d.Memory, d.Reserved)
	case !(l.AllToAll > 0 && l.AllToAll <= 1):
		return fmt.Errorf("links[0].all_to_all is %v: want a part of the bandwidth, more than 0 and at most 1", l.AllToAll)
	case !(l.RingFraction >= 0 && l.RingFraction <= 1):
		return fmt.Errorf("links[0].together is %v: want a part from 0 to 1", l.RingFraction)
	case l.Island < 0 || l.Island > 0 && !(l.Across > 0):
		return fmt.Errorf("links[0].island is %d with across %v: want 0, or devices of a switch and bytes per second "+
			"between switches", l.Island, l.Across)
	}
	return nil
}

// JSON returns the file that ReadMachine reads.
func (m Machine) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(machineFile{m.kinds(), []Interconnect{m.Link}, m.Pairs}, "", " ")
	return append(b, '\n'), err
}
