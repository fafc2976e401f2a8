package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"patchbay/parallel/hardware"
)

// survey is what machines reported about themselves, and measured about the network between them, when they met.
type survey struct {
	Hosts  []string `json:"hosts"`  // addresses, in the order of ranks
	Places []int    `json:"places"` // of each
	hardware.Site
	Speed
	At time.Time `json:"at"`
}

// maxSurveys is how many surveys are stored.
const maxSurveys = 32

// readSurveys reads the file of surveys, newest first; none if there is no file. It leaves out those that no
// prediction can be made with.
func readSurveys(path string) (list []survey, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("measured networks in %s: %w", path, err)
	}
	return slices.DeleteFunc(list, func(m survey) bool {
		places := 0
		for _, n := range m.Places {
			places += n
		}
		return !(m.Bandwidth > 0) && m.Devices == nil || !(m.Latency >= 0) || len(m.Hosts) != len(m.Places) ||
			slices.ContainsFunc(m.Places, func(n int) bool { return n < 1 }) || m.Check(places) != nil
	}), nil
}

// Keep stores what hosts report and measure when they meet in a file, and uses what it has of the same hosts until they
// meet. It must be called once, before anything else. It returns an error if the file cannot be read; the file is then
// ignored, and replaced later. failed is called if it cannot be written.
func (c *Cluster) Keep(path string, failed func(error)) error {
	list, err := readSurveys(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.failed = path, failed
	for _, m := range list {
		if sameHosts(m.Hosts, c.list()) {
			c.survey = m
			break
		}
	}
	return err
}

// sameHosts reports whether two lists have the same hosts in any order, because ranks may use another one.
func sameHosts(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// keep records a meeting and stores it.
func (c *Cluster) keep(m survey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.survey = m; c.file == "" || m.Bandwidth <= 0 && m.Devices == nil {
		return
	}
	list, _ := readSurveys(c.file)
	list = slices.DeleteFunc(list, func(o survey) bool { return sameHosts(o.Hosts, m.Hosts) })
	list = append([]survey{m}, list[:min(len(list), maxSurveys-1)]...)
	b, err := json.MarshalIndent(list, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(c.file), 0o755)
	}
	part := fmt.Sprintf("%s.%d", c.file, os.Getpid())
	if err == nil {
		err = os.WriteFile(part, append(b, '\n'), 0o644)
	}
	if err == nil {
		err = os.Rename(part, c.file)
	}
	if err != nil {
		c.failed(err)
	}
}
