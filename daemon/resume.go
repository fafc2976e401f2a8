package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/parallel/resume"
)

// resumeOff is the value of --resume-bytes with which no evaluations are kept.
const resumeOff = "off"

// resumeSpare is what evaluations leave of the disk, for the queue and for pictures.
const resumeSpare = 256 << 20

// resumeBytes returns how many bytes the evaluations may take that workers keep for later attempts of their jobs; 0:
// none are kept, because jobs end with the daemon or the setting says so.
func (c *Config) resumeBytes() (int64, error) {
	if c.Queue != QueueDurable || c.Store == "" || c.ResumeBytes == resumeOff {
		return 0, nil
	}
	return ParseBytes(c.ResumeBytes)
}

// resumeRoot is the folder of those evaluations; it has one for each job.
func (c *Config) resumeRoot() string { return filepath.Join(c.Store, "resume") }

// resume returns where a worker keeps evaluations; nil: nowhere.
func (c *Config) resume(log zerolog.Logger) (*resume.Folder, error) {
	most, err := c.resumeBytes()
	if err != nil || most == 0 {
		return nil, err
	}
	build, err := c.build()
	if err != nil {
		return nil, err
	}
	return &resume.Folder{
		Root: c.resumeRoot(), Most: most, Spare: resumeSpare, Build: build, Dropped: func(err error) {
			log.Warn().Err(err).Msg("the evaluations of a run are not kept; should its worker die, they are computed again")
		},
	}, nil
}

// build tells programs apart, also those of one version.
func (c *Config) build() (string, error) {
	info, err := os.Stat(program())
	if err != nil {
		return "", fmt.Errorf("this program: %w", err)
	}
	return fmt.Sprint(c.Version, " ", info.Size(), " ", info.ModTime().UnixNano()), nil
}

// evaluations is the folder of what workers keep, for removing.
func (d *daemon) evaluations() *resume.Folder { return &resume.Folder{Root: d.cfg.resumeRoot()} }

// sweepEvaluations removes what workers have kept for jobs that are not open: those that have ended while this daemon
// was not running, or elsewhere.
func (d *daemon) sweepEvaluations() {
	most, _ := d.cfg.resumeBytes()
	d.evaluations().Sweep(func(job string) bool { return most > 0 && d.jobs.Pending(job) })
}

// sweepEvery is how often the daemon looks for jobs that have ended elsewhere.
const sweepEvery = 10 * time.Minute

// ended follows the end of a job. It does not block.
func (d *daemon) ended(ev message.Event) {
	if message.Terminal(ev.Type) {
		go d.evaluations().Forget(ev.Job)
	}
}
