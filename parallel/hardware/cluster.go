// Package hardware describes devices, machines and what connects them: their rates, and who measured them. cluster.go
// has the devices and links that a plan may use, with a built-in table (devices.json), machine.go what was measured on
// a machine and what hosts report, wire.go the seconds of exchanges.
package hardware

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"patchbay/parallel/plan"
)

//go:embed devices.json
var devicesJSON []byte

// Device describes one kind of processor. Rates are what a transformer block achieves, not what a data sheet promises.
type Device struct {
	Name string `json:"name"`
	// GEMM and Attention are floating-point operations per second of large matrix products and of attention.
	GEMM      float64 `json:"gemm"`
	Attention float64 `json:"attention"`
	// Shapes correct these rates by kind of shape.
	Shapes
	// Traffic is the memory bandwidth in bytes per second, which bounds element-wise work.
	Traffic float64 `json:"traffic"`
	// Host is the bytes per second at which weights arrive from host memory while the device computes; 0: not known.
	Host float64 `json:"host,omitempty"`
	// Launch is the host time to launch one operation, in seconds.
	Launch float64 `json:"launch"`
	// Memory is in bytes, 0: no limit. Reserved bytes of it belong to the driver and its libraries.
	Memory   int64 `json:"memory"`
	Reserved int64 `json:"reserved"`
	// Handover is the host time between the result of one evaluation of a patch and the start of the next, in seconds.
	Handover float64 `json:"handover"`
	// WeightBytes and ValueBytes are the sizes of one weight and of one activation in bytes.
	WeightBytes float64 `json:"weight_bytes"`
	ValueBytes  int     `json:"value_bytes"`
	// BatchRows is how many token rows of one entry a rank may have for its entries to be evaluated as one batch, which
	// launches half as many operations and exchanges; more rows fill the device by themselves. 0: one after the other,
	// as on CPUs, where it makes no difference (docs/speed.md).
	BatchRows int `json:"together,omitempty"`
	// Workspace is how many bytes the device's libraries set aside for a rank.
	Workspace int64  `json:"workspace,omitempty"`
	Source    string `json:"source"`
}

// HostRate returns Host, or a usual rate.
func (d *Device) HostRate() float64 { return cmp.Or(d.Host, usualHostRate) }

// usualHostRate is what PCIe 3 with 16 lanes reaches, in bytes per second.
const usualHostRate = 12e9

// Shapes is how much longer small and odd shapes take than the rates of large ones say. Zero: no longer.
type Shapes struct {
	// ProductRows is added to the rows of every product: the time in which its matrix is read and the device fills and
	// drains.
	ProductRows float64 `json:"product_rows,omitempty"`
	// HeadStep is the multiple to which attention pads heads.
	HeadStep int `json:"head_step,omitempty"`
}

// Head returns the width of a head that attention computes with.
func (s Shapes) Head(dim int) int {
	step := max(1, s.HeadStep)
	return (dim + step - 1) / step * step
}

// Interconnect connects the devices of one host, or several hosts.
type Interconnect struct {
	Name string `json:"name"`
	// Bandwidth is the bytes per second that one device sends while it also receives.
	Bandwidth float64 `json:"bandwidth"`
	// Latency is the time of one message or collective in addition to that of its bytes, in seconds.
	Latency float64 `json:"latency"`
	// AllToAll is the fraction of Bandwidth that an all-to-all achieves; with islands the fraction of Across, and where
	// every pair was measured the fraction of what pairs achieve alone.
	AllToAll float64 `json:"all_to_all"`
	// RingFraction is the fraction of their rate alone that pairs achieve while all send around a ring, 0: all of it.
	RingFraction float64 `json:"together,omitempty"`
	// Island is how many devices share a switch, 0: all. Across is the bytes per second in one direction between two
	// islands, shared by all transfers that cross.
	Island int     `json:"island"`
	Across float64 `json:"across"`
	Source string  `json:"source"`
}

// Pair is the connection between two devices of a machine, measured while no others exchanged.
type Pair struct {
	A string `json:"a"` // named as in --devices: cuda:0
	B string `json:"b"`
	// Bandwidth is the bytes per second that each sends to the other at once, Latency the seconds of a small message.
	Bandwidth float64 `json:"bandwidth"`
	Latency   float64 `json:"latency"`
}

// Cluster is a set of devices and what connects them.
type Cluster struct {
	Device Device
	// Mixed is the device of each rank where they differ, of which the first is Device; nil: all are Device. The sizes
	// of weights and activations are those of Device for all.
	Mixed []Device
	Link  Interconnect
	// Between is the connection from each rank to each other one, [from][to], on one host; nil: Link between all.
	Between [][]Pair
	Hosts   int
	PerHost int
	// Places is the number of ranks of each host where these differ; Hosts is then 1 and PerHost at most their sum.
	// nil: PerHost on each.
	Places  []int
	Network Interconnect // between hosts; only with Hosts > 1 or Places
}

// deviceTable is the format of devices.json.
type deviceTable struct {
	Devices  []Device       `json:"devices"`
	Links    []Interconnect `json:"links"`
	Networks []Interconnect `json:"networks"`
}

// known returns the embedded table.
var known = sync.OnceValue(func() (t deviceTable) {
	if err := json.Unmarshal(devicesJSON, &t); err != nil {
		panic("hardware: devices.json: " + err.Error()) // the file is part of the program
	}
	return t
})

// Ranks returns the number of devices.
func (f Cluster) Ranks() int { return f.Hosts * f.PerHost }

// On returns the device of a rank. Ranks beyond the last device get the last one.
func (f *Cluster) On(rank int) *Device {
	if f.Mixed == nil {
		return &f.Device
	}
	return &f.Mixed[min(rank, len(f.Mixed)-1)]
}

// DescribeFrom describes the devices of the ranks from first on, as in "2xH100,2xL40", with suffix after each kind.
func (f Cluster) DescribeFrom(first int, suffix ...string) string {
	var parts []string
	for r := first + 1; r <= f.Ranks(); r++ {
		if name := f.On(r - 1).Name; r == f.Ranks() || f.On(r).Name != name {
			parts, first = append(parts, fmt.Sprintf("%dx%s%s", r-first, name, strings.Join(suffix, ""))), r
		}
	}
	return strings.Join(parts, ",")
}

// Sources says where the rates of the devices and of their link come from.
func (f Cluster) Sources() string {
	text := fmt.Sprintf("%s: %s", f.Device.Name, f.Device.Source)
	for i, d := range f.Mixed {
		if i > 0 && d.Name != f.Mixed[i-1].Name {
			text += fmt.Sprintf("; %s: %s", d.Name, d.Source)
		}
	}
	if f.Ranks() > 1 {
		text += fmt.Sprintf("; link %s: %s", f.Link.Name, f.Link.Source)
	}
	return text
}

// String returns the cluster in the syntax of ParseCluster.
func (f Cluster) String() string {
	if f.Mixed != nil {
		return f.DescribeFrom(0, "-"+f.Link.Name)
	}
	s := fmt.Sprintf("%dx%s-%s", f.PerHost, f.Device.Name, f.Link.Name)
	if f.Hosts > 1 {
		s = fmt.Sprintf("%dx%s+%s", f.Hosts, s, f.Network.Name)
	}
	return s
}

// ParseCluster reads "8xH100-nvlink", or with several hosts "2x8xL40-pcie+ethernet100": hosts, devices per host,
// device, link, network. Counts of 1 may be left out, and so may the link (the device's usual one) and the network
// (ethernet100). Devices of one host may differ, as in "2xH100-pcie,2xL40": they are sorted, fastest first, and share
// the slowest link. Errors list the known names.
func ParseCluster(text string) (Cluster, error) {
	var all Cluster
	for i, part := range strings.Split(text, ",") {
		f, err := parseEqual(part)
		if err != nil || i == 0 && part == text {
			return f, err
		}
		if i == 0 || f.Link.Bandwidth < all.Link.Bandwidth {
			all.Link = f.Link
		}
		all.Mixed = append(all.Mixed, slices.Repeat([]Device{f.Device}, f.PerHost)...)
		if all.Hosts = 1; f.Hosts > 1 || len(all.Mixed) > plan.MaxRanks {
			return all, fmt.Errorf("devices %q: want at most %d that differ, on one host", text, plan.MaxRanks)
		}
	}
	return all.Sorted(), nil
}

// Sorted returns f, a cluster of one host, with the devices in Mixed sorted, fastest first.
func (f Cluster) Sorted() Cluster {
	f.Mixed = slices.Clone(f.Mixed)
	slices.SortStableFunc(f.Mixed, func(a, b Device) int { return cmp.Compare(b.GEMM, a.GEMM) })
	f.Device, f.PerHost = f.Mixed[0], len(f.Mixed)
	return f.plain()
}

// plain returns f without Mixed if all devices there are Device.
func (f Cluster) plain() Cluster {
	if !slices.ContainsFunc(f.Mixed, func(d Device) bool { return d != f.Device }) {
		f.Mixed = nil
	}
	return f
}

// ofNames maps a GPU to the table row of one that is built on the same chip and at most as fast.
var ofNames = map[string]string{"A800": "A100", "GB200": "B200", "GH200": "H200", "H800": "H100", "L40S": "L40"}

// Usual returns the table's row, with its usual link, for a GPU that was not measured: by the name that the driver
// gives it ("NVIDIA H100 80GB HBM3"), or, if the table lacks it, by its compute capability (90 for 9.0). memory is in
// bytes. Name and Memory of the result are those of the GPU; Source says which row it is.
func Usual(name string, capability int, memory int64) Machine {
	table := known()
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	for i, w := range words {
		if i > 0 && w == "6000" { // "RTX PRO 6000 Blackwell", not "RTX 6000 Ada"
			words[i] = words[i-1] + w
		}
	}
	away := func(d Device) int64 { return max(d.Memory-memory, memory-d.Memory) }
	at, why := -1, "by its name"
	for i, d := range table.Devices {
		chip, _, _ := strings.Cut(d.Name, "-")
		for _, w := range words {
			if cmp.Or(ofNames[w], w) == chip && (at < 0 || away(d) < away(table.Devices[at])) {
				at = i
			}
		}
	}
	if at < 0 {
		row := "4090"
		switch {
		case capability == 80:
			row = "A100-80"
		case capability > 80 && capability < 89:
			row = "3090"
		case capability >= 120:
			row = "5090"
		case capability >= 100: // data center GPUs
			row = "B200"
		case capability >= 90:
			row = "H100"
		}
		why = "which has no row for a " + name
		at = slices.IndexFunc(table.Devices, func(d Device) bool { return d.Name == row })
	}
	d, row := table.Devices[at], table.Devices[at].Name
	d.Name, d.Memory, d.Reserved = name, memory, 0
	d.Source = fmt.Sprintf("row %s of the built-in table, %s: not measured here", row, why)
	link := usualLink(row)
	if slices.Contains(words, "PCIE") {
		link = "pcie4"
	}
	l, _ := linkNamed(name, table.Links, link) // always in the table
	l.Source = "of the built-in table: not measured here"
	return Machine{Device: d, Link: l}
}

// parseEqual is ParseCluster for equal devices.
func parseEqual(text string) (Cluster, error) {
	const example = "write for example 8xH100-nvlink or 2x8xL40-pcie+ethernet100"
	p := known()
	m := regexp.MustCompile(`^(?:(?:(\d+)x)?(\d+)x)?([^+]+)(?:\+(.+))?$`).FindStringSubmatch(text)
	if m == nil {
		return Cluster{}, fmt.Errorf("devices %q: %s", text, example)
	}
	count := func(s string) int {
		if s == "" {
			return 1
		}
		n, _ := strconv.Atoi(s) // digits; too many of them give the largest int, which is refused
		return n
	}
	f := Cluster{Hosts: count(m[1]), PerHost: count(m[2])}
	if f.Hosts < 1 || f.PerHost < 1 || f.Hosts > plan.MaxRanks || f.PerHost > plan.MaxRanks || f.Ranks() > plan.MaxRanks {
		return f, fmt.Errorf("devices %q: want 1 to %d devices in all: %s", text, plan.MaxRanks, example)
	}
	link, found := "", false
	name := strings.ReplaceAll(m[3], " ", "")
	if short, ok := cutFold(name, "RTX"); ok { // as people write it: "RTX PRO 6000"
		name = short
	}
	for _, d := range p.Devices {
		rest, ok := cutFold(name, d.Name)
		if ok && (rest == "" || rest[0] == '-') && len(d.Name) > len(f.Device.Name) {
			f.Device, link, found = d, strings.TrimPrefix(rest, "-"), true
		}
	}
	if !found {
		return f, fmt.Errorf("devices %q: unknown device %q: want one of %s", text, m[3],
			strings.Join(names(p.Devices, func(d Device) string { return d.Name }), ", "))
	}
	var err error
	if f.Link, err = linkNamed(text, p.Links, orName(link, usualLink(f.Device.Name))); err == nil && f.Hosts > 1 {
		f.Network, err = linkNamed(text, p.Networks, orName(m[4], "ethernet100"))
	}
	return f, err
}

// cutFold is a case-insensitive strings.CutPrefix.
func cutFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// usualLink returns the name of the link that devices of a kind are sold with.
func usualLink(device string) string {
	switch {
	case device == "cpu":
		return "memory"
	case strings.HasPrefix(device, "B"):
		return "nvlink5"
	case strings.HasPrefix(device, "H"):
		return "nvlink4"
	case device == "5090", device == "PRO6000":
		return "pcie5"
	case strings.HasPrefix(device, "A100"):
		return "nvlink3"
	}
	return "pcie4"
}

func orName(given, usual string) string {
	switch {
	case given == "":
		return usual
	case given == "nvlink" && strings.HasPrefix(usual, "nvlink"):
		return usual
	case given == "nvlink":
		return "nvlink4"
	case given == "pcie":
		return "pcie4"
	}
	return given
}

func linkNamed(text string, links []Interconnect, name string) (Interconnect, error) {
	for _, l := range links {
		if strings.EqualFold(l.Name, name) {
			return l, nil
		}
	}
	return Interconnect{}, fmt.Errorf("devices %q: unknown link %q: want one of %s", text, name,
		strings.Join(names(links, func(l Interconnect) string { return l.Name }), ", "))
}

func names[T any](list []T, name func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = name(v)
	}
	return out
}

// Devices returns the names of the known devices, links and networks between hosts.
func Devices() (devices, links, networks []string) {
	link := func(l Interconnect) string { return l.Name }
	return names(known().Devices, func(d Device) string { return d.Name }), names(known().Links, link),
		names(known().Networks, link)
}

// Of returns f with the devices of some of its ranks alone. Hosts and PerHost do not change.
func (f Cluster) Of(ranks []int) Cluster {
	mixed, between := f.Mixed, f.Between
	f.Mixed, f.Between = nil, nil
	for i, r := range ranks {
		if mixed != nil {
			f.Mixed = append(f.Mixed, mixed[r%len(mixed)])
			f.Device = f.Mixed[0]
		}
		if between != nil {
			f.Between = append(f.Between, make([]Pair, len(ranks)))
			for j, o := range ranks {
				f.Between[i][j] = between[r%len(between)][o%len(between)]
			}
		}
	}
	return f
}
