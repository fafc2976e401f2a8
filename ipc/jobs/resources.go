package jobs

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/register"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Resources are what a daemon has for jobs: files, and memory of a worker.
type Resources struct {
	Index  *files.Index
	Memory int64 // bytes that a worker may use; 0: not known
}

// note returns what this daemon announces.
func (p *Resources) note() register.Machine {
	m := register.NewMachine(p.Index)
	m.Memory = p.Memory
	return m
}

// Lacks returns why this daemon cannot run a job; nil if it can.
func (p *Resources) Lacks(needed []files.NeededFile, memory int64) error {
	if p == nil {
		return nil
	}
	if err := p.Index.Lacks(needed); err != nil {
		return err
	}
	return register.TooSmall(p.Memory, memory)
}

// ModelsElsewhere returns the names of model files of a kind that other daemons have.
func (j *Table) ModelsElsewhere(kind string) []string {
	var out []string
	for _, n := range j.others() {
		for _, f := range n.Files {
			if f.Kind == kind {
				out = append(out, f.Name)
			}
		}
	}
	return out
}

// Machines are the other daemons that share a store. *register.Register implements it.
type Machines interface {
	// Alive reports whether the daemon with that name shows signs of life, Heard whether it has since a time.
	Alive(name string) bool
	Heard(name string, since time.Time) bool
	// Daemons returns what each of those that are alive has.
	Daemons() map[string]register.Machine
}

// others returns the other daemons that are alive.
func (j *Table) others() map[string]register.Machine {
	if j.cfg.Machines == nil {
		return nil
	}
	return j.cfg.Machines.Daemons()
}

// admit completes sizes and hashes of files that are not here from the notes of other daemons, and refuses a job that
// no live daemon can run.
func (j *Table) admit(needed []files.NeededFile) *fault.Error {
	if j.cfg.Resources == nil {
		return nil
	}
	others := j.others()
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
	localErr := j.cfg.Resources.Lacks(needed, memory)
	if localErr == nil {
		return nil
	}
	why := []string{"this daemon: " + localErr.Error()}
	for _, o := range owners {
		err := others[o].Lacks(needed, memory)
		if err == nil {
			return nil
		}
		why = append(why, fmt.Sprintf("daemon %s on %s: %v", o, others[o].Machine, err))
	}
	e := fault.New(fault.NoCapacity, "no daemon has the files of this job")
	e.Details, e.RetryAfterMS = strings.Join(why, "; "), 10_000
	return e
}

// searchedIn names the daemons whose folders were searched for files that no daemon has: the lists of names in a
// refusal are those of all daemons together. The paths of the folders go to the log only.
func (j *Table) searchedIn(files []string) string {
	if j.cfg.Resources == nil {
		return ""
	}
	out := []string{"looked for in the folders of this daemon"}
	where := zerolog.Dict().Strs("this daemon", j.cfg.Resources.Index.Folders())
	others := j.others()
	for _, o := range slices.Sorted(maps.Keys(others)) {
		out = append(out, fmt.Sprintf("of daemon %s on %s", o, others[o].Machine))
		where.Strs(o, others[o].Folders)
	}
	j.cfg.Log.Info().Strs("files", files).Dict("folders", where).Msg("a workflow names files that no daemon has")
	return strings.Join(out, ", ")
}

// Admit refuses a job that no daemon can run. A known job was admitted before and is not refused.
func (j *Table) Admit(req *message.RunRequest) *fault.Error {
	if j.knows(req.ID) {
		return nil
	}
	return j.admit(req.Files)
}

// ExplainMissing adds to the refusal of a workflow which files were searched for and where, if missing files are the
// reason.
func (j *Table) ExplainMissing(err error) error {
	e := fault.From(err)
	names := missingFiles(e)
	if len(names) == 0 {
		return err
	}
	where := j.searchedIn(names)
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
