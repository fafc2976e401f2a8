package jobs

import (
	"bytes"
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

// Outputs keeps the files of jobs: written under the job ID before the job is done (Stage), moved to their final names
// after that (Commit), read back for replies (Read), dropped with the job (Forget). It is safe for concurrent use with
// one caller per job.
type Outputs struct {
	cfg OutputsConfig

	mu   sync.Mutex
	jobs map[string][]output // no list is changed: who reads one holds no lock
}

// output is one file: in memory, or at path.
type output struct {
	message.File
	path       string
	staged     bool // path is in the stage folder and is removed with the job
	unrecorded bool // the record may lack its name, by which only the staged copy leads to the file
	missing    bool // its file was lost or removed
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
	return &Outputs{cfg: cfg, jobs: map[string][]output{}}, nil
}

// Stage writes the files of a job to the stage, where nothing reads them yet, in place of those of an earlier attempt.
// A full disk is reported as disk_full.
func (s *Outputs) Stage(job string, files []message.File) error {
	s.Forget(job)
	list := make([]output, len(files))
	for i, f := range files {
		list[i] = output{File: f}
		if s.cfg.Stage == "" {
			list[i].Data = bytes.Clone(f.Data) // it may lie in shared memory that is released
			continue
		}
		path := s.staged(job, i, f.Ref)
		if err := s.patiently(func() error { return message.WriteSynced(path, f.Data) }); err != nil {
			_ = os.RemoveAll(filepath.Join(s.cfg.Stage, job))
			return message.StoreError(err)
		}
		list[i].path, list[i].staged, list[i].Data = path, true, nil
	}
	s.put(job, list)
	return nil
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
		name := filepath.Join(filepath.FromSlash(ref.Subfolder), ref.Filename)
		if dir := s.folder(ref.Type); ref.Filename != "" && dir != "" && filepath.IsLocal(name) {
			list[i].path, list[i].missing = filepath.Join(dir, name), false
		} else if path := s.staged(job, i, ref); s.cfg.Stage != "" && ref.Filename == "" {
			if _, err := os.Stat(path); err == nil {
				list[i].path, list[i].staged, list[i].missing = path, true, false
			}
		}
	}
	s.put(job, list)
}

// Sweep clears the stage of everything but files that have no other place, or whose names are not recorded yet. It must
// not be called while a job runs.
func (s *Outputs) Sweep() {
	entries, err := os.ReadDir(s.cfg.Stage)
	if s.cfg.Stage == "" || err != nil {
		return
	}
	for _, e := range entries {
		if !slices.ContainsFunc(s.of(e.Name()), func(f output) bool { return f.unrecorded }) {
			s.Clean(e.Name())
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
			if err := s.patiently(func() error { return f.commit(dir) }); err != nil {
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
	f.unrecorded = f.staged
	f.path, f.staged, f.Data = filepath.Join(dir, filepath.FromSlash(ref.Subfolder), ref.Filename), false, nil
	return nil
}

// Clean removes the staged copies of a job, unless one of its files has no other place.
func (s *Outputs) Clean(job string) {
	if s.cfg.Stage == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.jobs[job] {
		if f.staged {
			return
		}
	}
	if list := slices.Clone(s.jobs[job]); list != nil {
		for i := range list {
			list[i].unrecorded = false
		}
		s.jobs[job] = list
	}
	_ = os.RemoveAll(filepath.Join(s.cfg.Stage, job))
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
