package forecast

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"patchbay/parallel/plan"
)

//go:embed devices.json
var devicesJSON []byte

// Device is what one kind of processor does, as the planner needs it. Rates are what a transformer block reaches, not
// what a data sheet promises.
type Device struct {
	Name string `json:"name"`
	// GEMM and Attention are floating point operations per second of large products and of attention.
	GEMM      float64 `json:"gemm"`
	Attention float64 `json:"attention"`
	// Traffic is bytes per second of the device's memory: element-wise work is bound by it.
	Traffic float64 `json:"traffic"`
	// Launch is the host's time for one operation, seconds.
	Launch float64 `json:"launch"`
	// Memory is bytes; Reserved of them belong to the driver and its libraries.
	Memory   int64 `json:"memory"`
	Reserved int64 `json:"reserved"`
	// Handover is the host's time between the result of one evaluation of a patch and the start of the next, seconds.
	Handover float64 `json:"handover"`
	// WeightBytes and ValueBytes are the bytes of one weight and of one activation.
	WeightBytes float64 `json:"weight_bytes"`
	ValueBytes  int     `json:"value_bytes"`
	// Workspace is bytes that its libraries put aside for a rank.
	Workspace int64  `json:"workspace,omitempty"`
	Source    string `json:"source"`
}

// Link is what connects devices of one host, or hosts.
type Link struct {
	Name string `json:"name"`
	// Bandwidth is bytes per second that one device sends while it also receives.
	Bandwidth float64 `json:"bandwidth"`
	// Latency is seconds of one message or collective beyond its bytes.
	Latency float64 `json:"latency"`
	// AllToAll is the part of Bandwidth that an all-to-all reaches; where there are islands, of Across.
	AllToAll float64 `json:"all_to_all"`
	// Island is how many devices share a switch, 0: all. Across is bytes per second in one direction between two islands,
	// shared by all who cross.
	Island int     `json:"island"`
	Across float64 `json:"across"`
	Source string  `json:"source"`
}

// Cluster is a set of equal devices and what connects them.
type Cluster struct {
	Device  Device
	Link    Link
	Hosts   int
	PerHost int
	Network Link // between hosts; only with Hosts > 1
}

// deviceTable is the data file.
type deviceTable struct {
	Devices  []Device `json:"devices"`
	Links    []Link   `json:"links"`
	Networks []Link   `json:"networks"`
}

func readDevices() (deviceTable, error) {
	var p deviceTable
	if err := json.Unmarshal(devicesJSON, &p); err != nil {
		return p, fmt.Errorf("read the embedded table of devices: %w", err)
	}
	return p, nil
}

// Ranks returns the number of devices.
func (f Cluster) Ranks() int { return f.Hosts * f.PerHost }

// String returns the cluster in the syntax of ParseCluster.
func (f Cluster) String() string {
	s := fmt.Sprintf("%dx%s-%s", f.PerHost, f.Device.Name, f.Link.Name)
	if f.Hosts > 1 {
		s = fmt.Sprintf("%dx%s+%s", f.Hosts, s, f.Network.Name)
	}
	return s
}

// ParseCluster reads "8xH100-nvlink", or with several hosts "2x8xL40-pcie+ethernet100": hosts, devices of each, device,
// link, network. Counts of 1 may be left out, and the link where the device has a usual one. Errors list the names that
// are known.
func ParseCluster(text string) (Cluster, error) {
	const example = "write for example 8xH100-nvlink or 2x8xL40-pcie+ethernet100"
	p, err := readDevices()
	if err != nil {
		return Cluster{}, err
	}
	m := regexp.MustCompile(`^(?:(?:(\d+)x)?(\d+)x)?([^+]+)(?:\+(.+))?$`).FindStringSubmatch(text)
	if m == nil {
		return Cluster{}, fmt.Errorf("devices %q: %s", text, example)
	}
	count := func(s string) int {
		if s == "" {
			return 1
		}
		n, _ := strconv.Atoi(s) // digits; overlong ones give the largest int, which is refused
		return n
	}
	f := Cluster{Hosts: count(m[1]), PerHost: count(m[2])}
	if f.Hosts < 1 || f.PerHost < 1 || f.Hosts > plan.MaxRanks || f.PerHost > plan.MaxRanks || f.Ranks() > plan.MaxRanks {
		return f, fmt.Errorf("devices %q: want 1 to %d devices in all: %s", text, plan.MaxRanks, example)
	}
	link, found := "", false
	for _, d := range p.Devices {
		rest, ok := cutFold(m[3], d.Name)
		if ok && (rest == "" || rest[0] == '-') && len(d.Name) > len(f.Device.Name) {
			f.Device, link, found = d, strings.TrimPrefix(rest, "-"), true
		}
	}
	if !found {
		return f, fmt.Errorf("devices %q: unknown device %q: want one of %s", text, m[3],
			strings.Join(names(p.Devices, func(d Device) string { return d.Name }), ", "))
	}
	if f.Link, err = linkNamed(text, p.Links, orName(link, usualLink(f.Device.Name))); err != nil {
		return f, err
	}
	if f.Hosts > 1 {
		f.Network, err = linkNamed(text, p.Networks, orName(m[4], "ethernet100"))
	}
	return f, err
}

// cutFold is strings.CutPrefix for any case of letters.
func cutFold(s, prefix string) (rest string, ok bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// usualLink is the link that devices of a kind are sold with.
func usualLink(device string) string {
	switch {
	case device == "cpu":
		return "memory"
	case strings.HasPrefix(device, "H"):
		return "nvlink4"
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

func linkNamed(text string, links []Link, name string) (Link, error) {
	for _, l := range links {
		if strings.EqualFold(l.Name, name) {
			return l, nil
		}
	}
	return Link{}, fmt.Errorf("devices %q: unknown link %q: want one of %s", text, name,
		strings.Join(names(links, func(l Link) string { return l.Name }), ", "))
}

func names[T any](list []T, name func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = name(v)
	}
	return out
}

// Devices lists the names of the known devices, of their links and of the networks between hosts.
func Devices() (devices, links, networks []string, err error) {
	p, err := readDevices()
	if err != nil {
		return nil, nil, nil, err
	}
	link := func(l Link) string { return l.Name }
	return names(p.Devices, func(d Device) string { return d.Name }), names(p.Links, link), names(p.Networks, link), nil
}

// pattern is how the members of a group talk to each other.
type pattern uint8

const (
	toNeighbour pattern = iota // everyone sends to the next one, around the circle
	toNext                     // everyone but the last sends to the next one
	toAll                      // everyone sends an equal part to everyone else
)

// wire is the cost of one exchange pattern of one axis: every member sends bytes at the same time as all other groups
// of the axis do.
type wire struct{ perByte, latency float64 }

// seconds for one exchange in which a member sends so many bytes.
func (w wire) seconds(bytes float64) float64 { return w.latency + bytes*w.perByte }

// wire works out what an exchange costs when all groups of ranks use the cluster at once: the narrowest of a device's
// own link, the way between islands and the way between hosts.
func (f Cluster) wire(groups [][]int, p pattern) wire {
	islands, hosts := map[int]float64{}, map[int]float64{} // bytes that leave, for one byte sent by every member
	place := func(r int) (host, island int) {
		host = r / f.PerHost
		if f.Link.Island == 0 {
			return host, host
		}
		return host, host*1000 + r%f.PerHost/f.Link.Island
	}
	crossed := false
	flow := func(from, to int, part float64) {
		h0, i0 := place(from)
		h1, i1 := place(to)
		switch {
		case h0 != h1:
			hosts[h0] += part
			crossed = true
		case i0 != i1:
			islands[i0] += part
		}
	}
	members := 0
	for _, g := range groups {
		members = max(members, len(g))
		for i, r := range g {
			switch {
			case p == toAll:
				for _, o := range g {
					if o != r {
						flow(r, o, 1/float64(len(g)-1))
					}
				}
			case i < len(g)-1 || p == toNeighbour:
				flow(r, g[(i+1)%len(g)], 1)
			}
		}
	}
	if members < 2 {
		return wire{}
	}
	part := 1.0
	if p == toAll {
		part = f.Link.AllToAll
	}
	w := wire{perByte: 1 / f.Link.Bandwidth, latency: f.Link.Latency}
	if f.Link.Island == 0 {
		w.perByte /= part
	}
	for _, n := range slices.Sorted(maps.Values(islands)) {
		w.perByte = max(w.perByte, n/(f.Link.Across*part))
	}
	if crossed {
		w.latency = f.Network.Latency
		for _, n := range slices.Sorted(maps.Values(hosts)) {
			w.perByte = max(w.perByte, n/f.Network.Bandwidth)
		}
	}
	return w
}
