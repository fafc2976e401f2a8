package message

// Stats holds a daemon's counters: the reply to the verb stats, and the data of `nats service stats`. Counters start at
// zero with the daemon.
type Stats struct {
	V           int               `json:"v"`
	Daemon      string            `json:"daemon"`
	Version     string            `json:"version"`
	Since       int64             `json:"since"` // Unix milliseconds
	Queued      int               `json:"queued"`
	Running     int               `json:"running"`
	Paused      bool              `json:"paused,omitempty"` // waiting jobs stay where they are
	Jobs        map[State]int     `json:"jobs"`             // remembered jobs by state
	Workers     []WorkerStats     `json:"workers"`
	Devices     []string          `json:"devices"` // of one worker, one for each rank: cuda:0, cuda:1; or cpu
	WorkerPIDs  []int             `json:"worker_pids"`
	Rate        float64           `json:"steps_per_second"` // of all running jobs together
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

// StoreStats describes use and health of the job store.
type StoreStats struct {
	Bytes int64 `json:"bytes"` // of the files of all its streams
	Limit int64 `json:"limit"` // that they may take; 0: not known
	Full  bool  `json:"full"`  // no new jobs are accepted now
	Head  int64 `json:"head"`  // part of Limit reserved for records and terminal events of existing jobs
	// Lost counts jobs that had events but no record when the daemon started.
	Lost     int      `json:"lost"`
	LostJobs []string `json:"lost_jobs,omitempty"` // the first 20 of them
	// Damaged lists the streams of which the server reports lost messages, with the number of bytes lost.
	Damaged []string `json:"damaged,omitempty"`
	// Copies is the number of replicas of every record, each on a server of its own; 0: not known yet.
	Copies int `json:"copies,omitempty"`
	// Trouble names streams without a leader, and servers that are offline or lagging.
	Trouble []string `json:"trouble,omitempty"`
	// Restored counts records that the server lost while the daemon ran and that the daemon wrote again.
	Restored int `json:"restored,omitempty"`
}

// WorkerStats describes one worker of a daemon.
type WorkerStats struct {
	Name     string  `json:"name"`
	PID      int     `json:"pid"` // 0: it is starting
	Restarts int     `json:"restarts"`
	Job      string  `json:"job,omitempty"`  // ids of its jobs, joined by ", "; what follows are sums over them
	Step     int     `json:"step,omitempty"` // of the current or last sampling node
	Steps    int     `json:"steps,omitempty"`
	Rate     float64 `json:"steps_per_second,omitempty"`
}
