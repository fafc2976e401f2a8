package hardware

import (
	"maps"
	"slices"
)

// Pattern is how the members of a group communicate.
type Pattern uint8

// The patterns.
const (
	ToNeighbour Pattern = iota // each member sends to the next one, around a ring
	ToNext                     // each member but the last sends to the next one
	ToAll                      // each member sends an equal part to each other one
)

// Wire is the cost in seconds of one exchange pattern of one axis, in which every member sends bytes at the same time
// as all other groups of the axis.
type Wire struct{ PerByte, Latency float64 } // seconds

// Seconds returns the time of one exchange in which each member sends the given number of bytes.
func (w Wire) Seconds(bytes float64) float64 { return w.Latency + bytes*w.PerByte }

// HostOf returns the host that a rank runs on, from 0 on.
func (f *Cluster) HostOf(rank int) int {
	host, _ := f.hostOf(rank)
	return host
}

func (f *Cluster) hostOf(rank int) (host, place int) {
	for i, n := range f.Places {
		if rank < n {
			return i, rank
		}
		rank -= n
	}
	return len(f.Places) + rank/f.PerHost, rank % f.PerHost
}

// paired is Wire where the connection of every two ranks was measured. A member sends to several others one after the
// other, the slowest member counts, and pairs that exchange at the same time do not achieve what each achieves alone.
func (f Cluster) paired(groups [][]int, p Pattern) (w Wire) {
	ways, most := map[[2]int]bool{}, 0
	for _, g := range groups {
		most = max(most, len(g))
		for i, r := range g {
			to := g
			if p != ToAll {
				to = g[(i+1)%len(g) : (i+1)%len(g)+1]
			}
			if len(g) < 2 || p == ToNext && i == len(g)-1 {
				continue
			}
			perByte := 0.0
			for _, o := range to {
				if o == r {
					continue
				}
				way := f.Between[r%len(f.Between)][o%len(f.Between)]
				perByte += 1 / way.Bandwidth / float64(max(1, len(to)-1))
				w.Latency = max(w.Latency, way.Latency)
				ways[[2]int{min(r, o), max(r, o)}] = true
			}
			w.PerByte = max(w.PerByte, perByte)
		}
	}
	if most > 2 {
		w.Latency = max(w.Latency, f.Link.Latency)
	}
	part := f.Link.RingFraction
	if p == ToAll && most > 2 {
		part = f.Link.AllToAll
	}
	if len(ways) > 1 && part > 0 {
		w.PerByte /= part
	}
	return w
}

// Wire returns the cost of an exchange when all groups of ranks use the cluster at once. It is limited by the narrowest
// of a device's own link, the connection between islands and the one between hosts.
func (f Cluster) Wire(groups [][]int, p Pattern) Wire {
	if f.Between != nil && f.Hosts == 1 && f.Places == nil {
		return f.paired(groups, p)
	}
	islands, hosts := map[int]float64{}, map[int]float64{} // bytes that leave each, for one byte sent by every member
	place := func(r int) (host, island int) {
		host, island = f.hostOf(r)
		if f.Link.Island == 0 {
			return host, host
		}
		return host, host*1000 + island/f.Link.Island
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
			case p == ToAll:
				for _, o := range g {
					if o != r {
						flow(r, o, 1/float64(len(g)-1))
					}
				}
			case i < len(g)-1 || p == ToNeighbour:
				flow(r, g[(i+1)%len(g)], 1)
			}
		}
	}
	if members < 2 {
		return Wire{}
	}
	part := 1.0
	if p == ToAll {
		part = f.Link.AllToAll
	}
	w := Wire{PerByte: 1 / f.Link.Bandwidth, Latency: f.Link.Latency}
	if f.Link.Island == 0 {
		w.PerByte /= part
	}
	for _, n := range slices.Sorted(maps.Values(islands)) {
		w.PerByte = max(w.PerByte, n/(f.Link.Across*part))
	}
	if crossed {
		w.Latency = f.Network.Latency
		for _, n := range slices.Sorted(maps.Values(hosts)) {
			w.PerByte = max(w.PerByte, n/f.Network.Bandwidth)
		}
	}
	return w
}
