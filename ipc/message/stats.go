package message

// Stats is what a daemon counts: the reply of the verb stats, and the data of `nats service stats`. Counters begin with
// the daemon.
type Stats struct {
	V           int               `json:"v"`
	Daemon      string            `json:"daemon"`
	Version     string            `json:"version"`
	Since       int64             `json:"since"` // Unix milliseconds
	Queued      int               `json:"queued"`
	Running     int               `json:"running"`
	Jobs        map[State]int     `json:"jobs"` // remembered jobs by state
	Workers     []WorkerStats     `json:"workers"`
	Devices     []string          `json:"devices"` // of a worker, one for each place of a rank: cuda:0, cuda:1; or cpu
	WorkerPIDs  []int             `json:"worker_pids"`
	Rate        float64           `json:"steps_per_second"` // of all jobs that run now
	Steps       uint64            `json:"steps"`
	Samples     uint64            `json:"samples"` // runs of the verb sample
	Axes        map[string]uint64 `json:"axis_bytes"`
	Ended       map[State]uint64  `json:"ended"`
	Events      uint64            `json:"events"`
	CacheHits   uint64            `json:"cache_hits"`
	CacheMisses uint64            `json:"cache_misses"`
	Requests    map[string]uint64 `json:"requests"`
	Refused     map[string]uint64 `json:"refused"`
	Store       *StoreStats       `json:"store,omitempty"` // nil: jobs are in memory only
}

// StoreStats is how much of the job store is used.
type StoreStats struct {
	Bytes int64 `json:"bytes"` // of the files of all its streams
	Limit int64 `json:"limit"` // that they may have; 0: not known
	Full  bool  `json:"full"`  // it takes no new jobs now
	Head  int64 `json:"head"`  // of the limit, kept for records and ends of jobs that are there
	// Lost are jobs whose events were there when the daemon started, and whose records were not.
	Lost     int      `json:"lost"`
	LostJobs []string `json:"lost_jobs,omitempty"` // the first of them
	// Damaged are the streams that the server says it has lost messages of, with the bytes of those.
	Damaged []string `json:"damaged,omitempty"`
	// Copies are those of every record, on as many servers; 0: not known yet.
	Copies int `json:"copies,omitempty"`
	// Trouble names streams that no server leads, and servers that are away or behind.
	Trouble []string `json:"trouble,omitempty"`
	// Restored are records that the server had lost while the daemon ran, and that it has written again.
	Restored int `json:"restored,omitempty"`
}

// WorkerStats is one worker of a daemon.
type WorkerStats struct {
	Name     string  `json:"name"`
	PID      int     `json:"pid"` // 0: it is being started
	Restarts int     `json:"restarts"`
	Job      string  `json:"job,omitempty"`
	Step     int     `json:"step,omitempty"` // of the sampling node that runs or ran last
	Steps    int     `json:"steps,omitempty"`
	Rate     float64 `json:"steps_per_second,omitempty"`
}
