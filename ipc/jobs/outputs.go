package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/node/files"
)

// OutputsConfig says where files of jobs go. If all fields are empty, files stay in memory.
type OutputsConfig struct {
	// folder for files of jobs that are not done yet; on the file system of Output, so that a full disk shows before a
	// job is done
	Stage  string
	Output string // folder for files of type output
	Temp   string // folder for files of type temp (PreviewImage); empty: those are kept in Stage
	Log    zerolog.Logger
	Keep   bool // keep what an earlier run has left in Stage: Adopt it, then Sweep
}

// Outputs keeps the files of jobs: written under the job ID as they are made (Stage), given their final names (Commit),
// read back for replies (Read), dropped with the job (Forget). Until the record of the job names them, another attempt
// or another run of the daemon finds in the stage what has a name already. It is safe for concurrent use with one
// caller per job.
type Outputs struct {
	cfg OutputsConfig

	mu   sync.Mutex
	jobs map[string][]output // no list is changed: who reads one holds no lock
	runs map[string]int      // attempts that have not returned, those that another daemon has taken over by now too
}

// output is one file: in memory, or at path.
type output struct {
	message.File
	path    string
	staged  bool // path is in the stage folder and is removed with the job
	open    bool // the record may lack it, or its name, by which only the stage leads to the file
	missing bool // its file was lost or removed
}

// NewOutputs creates the folders and clears what an earlier run has left in the stage, unless cfg.Keep is set.
func NewOutputs(cfg OutputsConfig) (*Outputs, error) {
	if cfg.Stage != "" && !cfg.Keep {
		if err := os.RemoveAll(cfg.Stage); err != nil {
			return nil, fmt.Errorf("clear stage: %w", err)
		}
	}
	for _, d := range []string{cfg.Stage, cfg.Output, cfg.Temp} {
		if d == "" {
			continue
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make folder: %w", err)
		}
	}
	return &Outputs{cfg: cfg, jobs: map[string][]output{}, runs: map[string]int{}}, nil
}

// Stage writes the files that an attempt at a job has made so far to the stage. Those that this or an earlier attempt
// has staged with the same content stay as they are, with their names; in place of others come the new ones. An earlier
// attempt's that are not made again stay too, but for those of a job that has ended and runs again. A full disk is
// reported as disk_full.
func (s *Outputs) Stage(job string, files []message.File) error {
	list := slices.Clone(s.of(job))
	if slices.ContainsFunc(list, func(f output) bool { return !f.open }) {
		s.Forget(job)
		list = nil
	}
	for i, f := range files {
		switch {
		case i == len(list):
			list = append(list, output{})
		case list[i].holds(f.Ref):
			continue
		}
		s.withdraw(job, i, &list[i])
		list[i] = output{File: f, open: true}
		if s.cfg.Stage == "" {
			list[i].Data = bytes.Clone(f.Data) // it may lie in shared memory that is released
			continue
		}
		path := s.staged(job, i, f.Ref)
		_ = os.Remove(path) // not to write through a link
		err := s.patiently(func() error { return message.WriteSynced(path, f.Data) })
		if err == nil {
			err = s.note(job, i, f.Ref)
		}
		if err != nil {
			for k := i; k < len(list); k++ {
				s.withdraw(job, k, &list[k])
			}
			s.put(job, list[:i])
			return message.StoreError(err)
		}
		list[i].path, list[i].staged, list[i].Data = path, true, nil
	}
	s.put(job, list)
	return nil
}

// holds reports whether the file is there and is the one that ref describes, whatever its name.
func (f *output) holds(ref message.OutputRef) bool {
	was := f.Ref
	was.Filename, was.Subfolder = ref.Filename, ref.Subfolder
	return !f.missing && was == ref
}

// withdraw removes file i of a job, which no record names: from the stage, and under its final name if it is as it was
// made.
func (s *Outputs) withdraw(job string, i int, f *output) {
	if f.open && !f.staged && f.path != "" {
		if data, err := os.ReadFile(f.path); err == nil && message.Checksum(data) == f.Ref.CRC32C {
			_ = os.Remove(f.path)
		}
	}
	if s.cfg.Stage != "" {
		_ = os.Remove(s.staged(job, i, f.Ref))
		_ = os.Remove(s.noted(job, i))
		_ = os.Remove(filepath.Join(s.cfg.Stage, job)) // if it is empty
	}
}

// note writes beside a staged file what is known of it, for the next run of the daemon.
func (s *Outputs) note(job string, i int, ref message.OutputRef) error {
	b, err := json.Marshal(ref)
	if err != nil {
		return err
	}
	return s.patiently(func() error { return os.WriteFile(s.noted(job, i), b, 0o644) })
}

func (s *Outputs) noted(job string, i int) string {
	return filepath.Join(s.cfg.Stage, job, fmt.Sprintf("%d.json", i))
}

// unfinished returns the files of a job that an earlier run of the daemon has staged before the job ended.
func (s *Outputs) unfinished(job string) (list []output) {
	for i := 0; ; i++ {
		var ref message.OutputRef
		b, err := os.ReadFile(s.noted(job, i))
		if err != nil || json.Unmarshal(b, &ref) != nil {
			return list
		}
		f := output{File: message.File{Ref: ref}, open: true, path: s.staged(job, i, ref), staged: true}
		if data, err := os.ReadFile(f.path); err != nil || message.Checksum(data) != ref.CRC32C {
			return list
		}
		if name := s.named(ref); name != "" {
			if _, err := os.Stat(name); err == nil {
				f.path, f.staged = name, false
			}
		}
		if f.staged {
			f.Ref.Filename, f.Ref.Subfolder = "", "" // it was not given, or somebody has removed it
		}
		list = append(list, f)
	}
}

// named returns the path of the final name of a file; "": it has none.
func (s *Outputs) named(ref message.OutputRef) string {
	name := filepath.Join(filepath.FromSlash(ref.Subfolder), ref.Filename)
	if dir := s.folder(ref.Type); ref.Filename != "" && dir != "" && filepath.IsLocal(name) {
		return filepath.Join(dir, name)
	}
	return ""
}

// work counts the attempts at a job that are under way.
func (s *Outputs) work(job string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[job] += n; s.runs[job] == 0 {
		delete(s.runs, job)
	}
}

// left returns the jobs that no attempt is at work on and that have files which no record may name yet.
func (s *Outputs) left() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for job, list := range s.jobs {
		if s.runs[job] == 0 && slices.ContainsFunc(list, func(f output) bool { return f.open }) {
			ids = append(ids, job)
		}
	}
	return ids
}

// drop removes the files of a job that no record will name, since the job has ended or runs elsewhere.
func (s *Outputs) drop(job string) {
	list := s.of(job)
	for i := range list {
		s.withdraw(job, i, &list[i])
	}
	s.Forget(job)
}

func (s *Outputs) of(job string) []output {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[job]
}

// put sets the files of a job.
func (s *Outputs) put(job string, list []output) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[job] = list
}

// change is put for a job that has not been forgotten.
func (s *Outputs) change(job string, list []output) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, kept := s.jobs[job]; kept {
		s.jobs[job] = list
	}
}

// patience is how long a file operation waits for a free descriptor.
const patience = 30 * time.Second

// patiently calls open, which opens a file, again and again while the process has no free descriptor.
func (s *Outputs) patiently(open func() error) error {
	began := time.Now()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := open()
		lacking := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
		if !lacking || time.Since(began) > patience {
			return err
		}
		s.cfg.Log.Warn().Err(err).Msg("a file waits for a free descriptor")
		time.Sleep(pause)
	}
}

func (s *Outputs) staged(job string, i int, ref message.OutputRef) string {
	return filepath.Join(s.cfg.Stage, job, fmt.Sprintf("%d%s", i, filepath.Base(ref.Ext)))
}

// Adopt takes over the files of a job from an earlier run: under the names in its record or else from the stage. Files
// in neither place count as missing.
func (s *Outputs) Adopt(job string, refs []message.OutputRef) {
	list := make([]output, len(refs))
	for i, ref := range refs {
		list[i] = output{File: message.File{Ref: ref}, missing: true}
		if name := s.named(ref); name != "" {
			list[i].path, list[i].missing = name, false
		} else if path := s.staged(job, i, ref); s.cfg.Stage != "" && ref.Filename == "" {
			if _, err := os.Stat(path); err == nil {
				list[i].path, list[i].staged, list[i].open, list[i].missing = path, true, true, false
			}
		}
	}
	s.put(job, list)
}

// Sweep clears the stage of everything but files that have no other place, that no record names yet, or that attempts
// have made which did not end. It must not be called while a job runs.
func (s *Outputs) Sweep() {
	entries, err := os.ReadDir(s.cfg.Stage)
	if s.cfg.Stage == "" || err != nil {
		return
	}
	for _, e := range entries {
		job := e.Name()
		if s.of(job) == nil {
			if list := s.unfinished(job); list != nil {
				s.put(job, list)
			}
		}
		if !slices.ContainsFunc(s.of(job), func(f output) bool { return f.open }) {
			s.Clean(job)
		}
	}
}

// Commit gives the staged files of a job their final names and returns their descriptions in order. Without folders it
// only returns them. The staged copies stay until Clean, which is called once the names are recorded, so that an
// interrupted Commit can be repeated without making any file twice.
func (s *Outputs) Commit(job string) ([]message.OutputRef, error) {
	list := slices.Clone(s.of(job))
	var first error
	refs := make([]message.OutputRef, len(list))
	for i := range list {
		f := &list[i]
		if dir := s.folder(f.Ref.Type); dir != "" && f.Ref.Filename == "" {
			staged := f.staged
			err := s.patiently(func() error { return f.commit(dir) })
			if err == nil && staged {
				err = s.note(job, i, f.Ref)
			}
			if err != nil {
				first = errors.Join(first, message.StoreError(err))
			}
		}
		refs[i] = f.Ref
	}
	s.change(job, list)
	return refs, first
}

// commit gives one file its final name in dir.
func (f *output) commit(dir string) error {
	if f.missing {
		return fmt.Errorf("a file of node %s was lost before it had a name", f.Ref.Node)
	}
	var ref files.FileRef
	var err error
	if f.staged {
		ref, err = files.CommitStaged(dir, f.Output(), f.path)
	} else {
		ref, err = files.Commit(dir, f.Output())
	}
	if err != nil {
		return err
	}
	f.Ref.Filename, f.Ref.Subfolder = ref.Filename, ref.Subfolder
	f.path, f.staged, f.Data = filepath.Join(dir, filepath.FromSlash(ref.Subfolder), ref.Filename), false, nil
	return nil
}

// Clean removes the staged copies of a job, whose record names its files, unless one of them has no other place.
func (s *Outputs) Clean(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, last := slices.Clone(s.jobs[job]), false
	for i := range list {
		list[i].open, last = false, last || list[i].staged
	}
	if list != nil {
		s.jobs[job] = list
	}
	if s.cfg.Stage != "" && !last {
		_ = os.RemoveAll(filepath.Join(s.cfg.Stage, job))
	}
}

func (s *Outputs) folder(kind string) string {
	if kind == "temp" {
		return s.cfg.Temp
	}
	return s.cfg.Output
}

// Read returns file i of a job. It returns an error with code expired if the file is gone or was changed.
func (s *Outputs) Read(job string, i int) ([]byte, error) {
	list := s.of(job)
	if i >= len(list) {
		return nil, fault.New(fault.Expired, "the files of job %s are gone", job)
	}
	f := list[i]
	if f.missing {
		return nil, fault.New(fault.Expired, "file %d of job %s is gone", i, job)
	}
	if f.path == "" {
		return f.Data, nil
	}
	var data []byte
	err := s.patiently(func() (err error) {
		data, err = os.ReadFile(f.path)
		return err
	})
	if err != nil {
		if now := s.of(job); i < len(now) && now[i].path != f.path { // it got its final name meanwhile
			return s.Read(job, i)
		}
		return nil, fault.New(fault.Expired, "file %d of job %s is gone: %v", i, job, err)
	}
	if message.Checksum(data) != f.Ref.CRC32C {
		return nil, fault.New(fault.Expired, "file %d of job %s was changed after the job: %s", i, job, f.path)
	}
	return data, nil
}

// Share gives job to the files of job from, all of which must still be as they were made.
func (s *Outputs) Share(from, to string) error {
	list := slices.Clone(s.of(from))
	for i := range list {
		f := &list[i]
		data, err := s.Read(from, i)
		if err == nil && f.staged { // the staged file is removed with the other job
			f.path = s.staged(to, i, f.Ref)
			err = s.patiently(func() error { return message.WriteSynced(f.path, data) })
		}
		if err != nil {
			s.Forget(to)
			return err
		}
	}
	s.put(to, list)
	return nil
}

// Forget drops what is kept for a job. Files under their final names stay.
func (s *Outputs) Forget(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, job)
	if s.cfg.Stage != "" {
		_ = os.RemoveAll(filepath.Join(s.cfg.Stage, job))
	}
}

// Close removes the stage folder, unless the next run needs it.
func (s *Outputs) Close() error {
	if s.cfg.Stage == "" {
		return nil
	}
	if s.cfg.Keep {
		_ = os.Remove(s.cfg.Stage) // if it is empty
		return nil
	}
	return os.RemoveAll(s.cfg.Stage)
}
