package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Resources are what a daemon has for jobs: files, and memory of a worker.
type Resources struct {
	Index  *files.Index
	Memory int64 // bytes that a worker may use; 0: not known
}

// resourceNote is what a daemon announces about its resources: the value of key <daemon>.has in bucket patchbay-nodes.
type resourceNote struct {
	V       int                `json:"v"`
	Host    string             `json:"host"`
	Folders []string           `json:"folders"`
	Memory  int64              `json:"memory,omitempty"`
	Files   []files.NeededFile `json:"files"`
}

const (
	hasSuffix = ".has"
	// hasEvery is how often an unchanged note is rewritten: for daemons that started since, and before it expires
	hasEvery = 40 * time.Second
	hasLook  = 10 * time.Second // between scans of the folders
)

// note returns the resources of this daemon.
func (p *Resources) note() resourceNote {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return resourceNote{
		V: message.ProtocolVersion, Host: host, Folders: p.Index.Folders(), Memory: p.Memory,
		Files: p.Index.Models(),
	}
}

// lacks returns why a daemon with this note cannot run a job; nil if it can.
func (n resourceNote) lacks(needed []files.NeededFile, memory int64) error {
	for _, f := range needed {
		if !f.Shared() {
			return fmt.Errorf("%s is in the input folder of another machine; send it with the job (inputs)", f.Name)
		}
		i := slices.IndexFunc(n.Files, func(g files.NeededFile) bool { return g.Kind == f.Kind && g.Name == f.Name })
		switch {
		case i < 0:
			return fmt.Errorf("no file %s/%s in its folders", f.Kind, f.Name)
		case !n.Files[i].Same(f):
			return fmt.Errorf("%s/%s in its folders has other contents", f.Kind, f.Name)
		}
	}
	return tooSmall(n.Memory, memory)
}

func tooSmall(have, need int64) error {
	if have > 0 && need > have {
		return fmt.Errorf("the job needs %d bytes of memory for its largest file, a worker has %d", need, have)
	}
	return nil
}

// Lacks returns why this daemon cannot run a job; nil if it can.
func (p *Resources) Lacks(needed []files.NeededFile, memory int64) error {
	if p == nil {
		return nil
	}
	if err := p.Index.Lacks(needed); err != nil {
		return err
	}
	return tooSmall(p.Memory, memory)
}

// announce writes what this daemon has, if that has changed or hasEvery has passed.
func (l *JetStream) announce(ctx context.Context) error {
	if l.cfg.Resources == nil || time.Since(l.looked) < hasLook {
		return nil
	}
	b, err := json.Marshal(l.cfg.Resources.note())
	if err != nil {
		return err
	}
	if len(b) > l.room() {
		l.cfg.Log.Warn().Int("bytes", len(b)).Msg("the list of model files is longer than a message; other daemons do " +
			"not know what is here")
		b = []byte("{}")
	}
	l.looked = time.Now()
	if bytes.Equal(b, l.has) && time.Since(l.noted) < hasEvery {
		return nil
	}
	if _, err := l.daemons.Put(ctx, l.cfg.Owner+hasSuffix, b); err != nil {
		l.looked = time.Time{}
		return err
	}
	l.has, l.noted = b, time.Now()
	return nil
}

// noticed records a heartbeat or a note of a daemon.
func (l *JetStream) noticed(e jetstream.KeyValueEntry) {
	owner, isNote := strings.CutSuffix(e.Key(), hasSuffix)
	deleted := e.Operation() != jetstream.KeyValuePut
	var n resourceNote
	if isNote && !deleted {
		if err := wire.Read(e.Value(), wire.JSON, wire.DefaultLimits(), &n); err != nil {
			l.cfg.Log.Warn().Err(err).Str("daemon", owner).Msg("its list of files cannot be read")
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case deleted:
		delete(l.seen, owner)
		delete(l.places, owner)
	case isNote:
		l.places[owner] = n
	default:
		l.seen[owner] = time.Now()
	}
}

// others returns the notes of the other daemons that are alive, by name.
func (l *JetStream) others() map[string]resourceNote {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]resourceNote{}
	for owner, n := range l.places {
		if owner != l.cfg.Owner && time.Since(l.seen[owner]) < deadAfter {
			out[owner] = n
		}
	}
	return out
}

// ModelsElsewhere returns the names of model files of a kind that other daemons have.
func (l *JetStream) ModelsElsewhere(kind string) []string {
	var out []string
	for _, n := range l.others() {
		for _, f := range n.Files {
			if f.Kind == kind {
				out = append(out, f.Name)
			}
		}
	}
	return out
}

func (l *JetStream) lacks(rec message.Record) error {
	return l.cfg.Resources.Lacks(rec.Files, rec.Memory)
}

// admit implements Store: it completes sizes and hashes of files that are not here from the notes of other daemons,
// and refuses a job that no live daemon can run.
func (l *JetStream) admit(needed []files.NeededFile) *fault.Error {
	if l.cfg.Resources == nil {
		return nil
	}
	others := l.others()
	owners := slices.Sorted(maps.Keys(others))
	memory := int64(0)
	for i := range needed {
		for _, o := range owners {
			for _, g := range others[o].Files {
				if needed[i].Hash == "" && g.Same(needed[i]) {
					needed[i] = g
				}
			}
		}
		if needed[i].Shared() {
			memory = max(memory, needed[i].Bytes)
		}
	}
	localErr := l.cfg.Resources.Lacks(needed, memory)
	if localErr == nil {
		return nil
	}
	why := []string{"this daemon: " + localErr.Error()}
	for _, o := range owners {
		err := others[o].lacks(needed, memory)
		if err == nil {
			return nil
		}
		why = append(why, fmt.Sprintf("daemon %s on %s: %v", o, others[o].Host, err))
	}
	e := fault.New(fault.NoCapacity, "no daemon has the files of this job")
	e.Details, e.RetryAfterMS = strings.Join(why, "; "), 10_000
	return e
}

// searchedIn implements Store. It names the daemons whose folders were searched: the lists of names in a refusal are
// those of all daemons together. The paths of the folders go to the log only.
func (l *JetStream) searchedIn(files []string) string {
	if l.cfg.Resources == nil {
		return ""
	}
	out := []string{"looked for in the folders of this daemon"}
	where := zerolog.Dict().Strs("this daemon", l.cfg.Resources.Index.Folders())
	others := l.others()
	for _, o := range slices.Sorted(maps.Keys(others)) {
		out = append(out, fmt.Sprintf("of daemon %s on %s", o, others[o].Host))
		where.Strs(o, others[o].Folders)
	}
	l.cfg.Log.Info().Strs("files", files).Dict("folders", where).Msg("a workflow names files that no daemon has")
	return strings.Join(out, ", ")
}

// Admit refuses a job that no daemon can run. A known job was admitted before and is not refused.
func (j *Table) Admit(req *message.RunRequest) *fault.Error {
	if j.knows(req.ID) {
		return nil
	}
	return j.store.admit(req.Files)
}

// ExplainMissing adds to the refusal of a workflow which files were searched for and where, if missing files are the
// reason.
func (j *Table) ExplainMissing(err error) error {
	e := fault.From(err)
	names := missingFiles(e)
	if len(names) == 0 {
		return err
	}
	where := j.store.searchedIn(names)
	if where == "" {
		return err
	}
	e.Details = strings.TrimPrefix(fmt.Sprintf("%s\nno daemon has %s; %s", strings.TrimSpace(e.Details),
		strings.Join(names, ", "), where), "\n")
	return e
}

// missingFiles returns the values with a file extension that the errors of a workflow report as being in no list.
func missingFiles(e *fault.Error) []string {
	var out []string
	for _, v := range e.NodeErrors {
		var node struct {
			Errors []struct {
				Type  string         `json:"type"`
				Extra *pyjson.Object `json:"extra_info"`
			} `json:"errors"`
		}
		o, ok := v.(*pyjson.Object)
		if !ok || wire.Bind(o, &node) != nil {
			continue
		}
		for _, one := range node.Errors {
			if one.Type != "value_not_in_list" || one.Extra == nil {
				continue
			}
			name, _ := one.Extra.At("received_value").(string)
			if path.Ext(name) != "" && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}
