package fault

// Codes that clients see, in the order of docs/protocol.md.
const (
	BadRequest  = "bad_request"
	EmptyBody   = "empty_body"
	NoJob       = "no_such_job"
	NoModel     = "no_such_model"
	NoNodeType  = "no_such_node_type"
	NoHandle    = "no_such_handle"
	NoTemplate  = "no_such_template"
	NoVerb      = "no_such_verb"
	Duplicate   = "duplicate_conflict"
	Expired     = "expired"
	BadPayload  = "bad_payload"
	TooLarge    = "too_large"
	Unsupported = "unsupported_format"
	BadWorkflow = "bad_workflow"
	PlanRefused = "plan_refused"
	QueueFull   = "queue_full"
	Cancelled   = "cancelled"
	Internal    = "internal"
	WorkerLost  = "worker_lost"
	NoCapacity  = "no_capacity"
	FileChanged = "file_changed"
	Draining    = "draining"
	Deadline    = "deadline"
	OutOfMemory = "out_of_memory"
	DiskFull    = "disk_full"
)

// Codes of a workflow that is refused. All but those marked as ours are ComfyUI's error types.
const (
	NoPrompt         = "no_prompt"
	InvalidPromptID  = "invalid_prompt_id"
	InvalidPrompt    = "invalid_prompt"
	MissingNodeType  = "missing_node_type"
	NoOutputs        = "prompt_no_outputs"
	OutputsFailed    = "prompt_outputs_failed_validation"
	WorkflowTooLarge = "workflow_too_large" // ours
	WorkflowFormatUI = "workflow_format_ui" // ours

	InputMissing    = "required_input_missing"
	BadLink         = "bad_linked_input"
	TypeMismatch    = "return_type_mismatch"
	InvalidInput    = "invalid_input_type"
	TooSmall        = "value_smaller_than_min"
	TooBig          = "value_bigger_than_max"
	NotInList       = "value_not_in_list"
	Custom          = "custom_validation_failed"
	Validation      = "exception_during_validation"
	InnerValidation = "exception_during_inner_validation"
	Cycle           = "dependency_cycle"
	ExpectedLink    = "link_expected" // ours
)

// Codes with which a node, a sampling run or a rank fails.
const (
	FileMissing      = "file_missing"
	FileOutsideRoot  = "file_outside_root"
	BadCheckpoint    = "bad_checkpoint"
	WrongFamily      = "wrong_family"
	TokenizerMissing = "tokenizer_missing"
	BadImage         = "bad_image"
	BadInput         = "bad_input"
	DeadlineExceeded = "deadline_exceeded"
	Panic            = "internal_panic"
	UnknownHandle    = "unknown_handle"
	UnknownClass     = "unknown_class"
	HostLost         = "host_lost"
	PeerLost         = "rank_lost"
	DeviceLost       = "device_lost"
)

// Row is what the table says of a code.
type Row struct {
	Code   string
	Public string // the code that clients see, which is the code itself for those of docs/protocol.md
	Type   string // the field "type" that clients see beside it; empty: none
	// Status and Retryable are those of Public. Retryable: the same request may succeed later or elsewhere.
	Status    int
	Retryable bool
	When      string // when it is returned
}

// Public returns the rows of docs/protocol.md, in its order.
func Public() []Row {
	return []Row{
		public(BadRequest, 400, "the body cannot be decoded, was refused by the guard, or a field has the wrong type"),
		public(EmptyBody, 400, "run, submit, sample or exec without a body"),
		public(NoJob, 404, "no job of that id"),
		public(NoModel, 404, "a file named by the workflow is not in the models folders"),
		public(NoNodeType, 404, "exec or describe names a class that is not in the catalogue"),
		public(NoHandle, 404, "the handle was freed, its lease ran out, or its worker restarted"),
		public(NoTemplate, 404, "no template of that name; extra_info.allowed lists those that are there"),
		public(NoVerb, 404, "op is not a verb"),
		public(Duplicate, 409, "a job of that id exists with another body"),
		public(Expired, 410, "the job waited longer than its queue_ttl_ms, or its result is gone"),
		public(BadPayload, 422, "bytes that the message refers to could not be fetched, or are not what it says"),
		public(TooLarge, 413, "a body, reply, workflow, picture or number of steps is over its limit"),
		public(Unsupported, 415, "neither JSON nor msgpack; or a file of a format or family that is not supported"),
		public(BadWorkflow, 422, "the workflow was refused; type and node_errors are ComfyUI's"),
		public(PlanRefused, 422, "the plan cannot split this model or picture; details name the rule and a plan that "+
			"can").typed(),
		public(QueueFull, 429, "too many jobs are waiting, or the client has too many").retryable(),
		public(Cancelled, 499, "the job was cancelled"),
		public(Internal, 500, "a fault of the program").typed(),
		public(WorkerLost, 500, "the worker that ran the job died or hung; details name the cause").retryable(),
		public(NoCapacity, 503, "no worker can take the request").retryable(),
		public(FileChanged, 503, "a model file was written to while it was read, or its disk failed; message names "+
			"it").retryable().typed(),
		public(Draining, 503, "the daemon is shutting down").retryable(),
		public(Deadline, 504, "the job ran longer than its deadline_ms"),
		public(OutOfMemory, 507, "memory ran out").typed(),
		public(DiskFull, 507, "an output file or the job store could not be written: no space, or a limit on file "+
			"size").retryable().typed(),
	}
}

func public(code string, status int, when string) Row {
	return Row{Code: code, Public: code, Status: status, When: when}
}

// retryable returns the row of a code whose request may be sent again.
func (r Row) retryable() Row {
	r.Retryable = true
	return r
}

// typed returns the row of a code that is also written as the type, because nodes fail with it.
func (r Row) typed() Row {
	r.Type = r.Code
	return r
}

// table has the row of every code. Those that are not in docs/protocol.md reach clients as the type, beside a code that
// is; the exceptions are named.
var table = func() map[string]Row {
	out := map[string]Row{}
	for _, r := range Public() {
		out[r.Code] = r
	}
	for _, r := range []Row{
		{Code: NoPrompt, Public: BadRequest, When: "there is no workflow"},
		{Code: InvalidPromptID, Public: BadRequest, When: "prompt_id is no UUID in canonical form"},
		{Code: FileOutsideRoot, Public: BadRequest, When: "a name leads out of the operator's folders"},

		{Code: InvalidPrompt, Public: BadWorkflow, When: "the workflow is no graph of nodes"},
		{Code: MissingNodeType, Public: BadWorkflow, When: "the class of a node is not in the catalogue"},
		{Code: NoOutputs, Public: BadWorkflow, When: "no node makes an output"},
		{Code: OutputsFailed, Public: BadWorkflow, When: "nodes were refused; node_errors says why"},
		{Code: WorkflowFormatUI, Public: BadWorkflow, When: "a graph in the editor's format cannot be converted"},
		{Code: InputMissing, Public: BadWorkflow, When: "a required input is not there"},
		{Code: BadLink, Public: BadWorkflow, When: "a link is not [node id, slot]"},
		{Code: TypeMismatch, Public: BadWorkflow, When: "an output is linked to an input of another type"},
		{Code: InvalidInput, Public: BadWorkflow, When: "a value is not of the type of its input"},
		{Code: TooSmall, Public: BadWorkflow, When: "a number is below the minimum of its input"},
		{Code: TooBig, Public: BadWorkflow, When: "a number is above the maximum of its input"},
		{Code: NotInList, Public: BadWorkflow, When: "a value is not among those allowed"},
		{Code: Custom, Public: BadWorkflow, When: "the class itself refuses a value"},
		{Code: Validation, Public: BadWorkflow, When: "ComfyUI raises an exception for an output node"},
		{Code: InnerValidation, Public: BadWorkflow, When: "ComfyUI raises an exception for a node before it"},
		{Code: Cycle, Public: BadWorkflow, When: "nodes are linked in a circle"},
		{Code: ExpectedLink, Public: BadWorkflow, When: "a value is where a link belongs: ComfyUI fails when the node runs"},
		{Code: BadInput, Public: BadWorkflow, When: "a value only shows as wrong when the node runs"},

		{Code: WorkflowTooLarge, Public: TooLarge, When: "size, depth, nodes, pixels or steps are over a limit"},
		{Code: FileMissing, Public: NoModel, When: "a file is not in its folder"},
		{Code: TokenizerMissing, Public: NoModel, When: "a text encoder comes without a tokenizer"},
		{Code: BadCheckpoint, Public: Unsupported, When: "a file is unreadable, truncated or of an unknown family"},
		{Code: WrongFamily, Public: Unsupported, When: "a file is fine but not what the node or its neighbors need"},
		{Code: BadImage, Public: Unsupported, When: "a picture cannot be decoded"},
		{Code: UnknownHandle, Public: NoHandle, When: "a handle is not known or not of the wanted type"},
		{Code: UnknownClass, Public: NoNodeType, When: "exec names an unknown class"},
		{Code: DeadlineExceeded, Public: Deadline, When: "something waited too long"},
		{Code: HostLost, Public: WorkerLost, When: "a process of ranks exited or did not start"},
		{Code: Panic, Public: Internal, When: "a bug in a node, a rank, a sampler or a kernel"},
		// which rank or device is lost does not matter to clients
		{Code: PeerLost, Public: Internal, Type: Internal, When: "a rank hangs, missed an exchange, or issued another one"},
		{Code: DeviceLost, Public: Internal, Type: Panic, When: "nothing runs on a device until the process is restarted"},
	} {
		if r.Type == "" {
			r.Type = r.Code
		}
		r.Status, r.Retryable = out[r.Public].Status, out[r.Public].Retryable
		out[r.Code] = r
	}
	return out
}()

// RowOf returns what the table says of a code. One that is not there came from a program of another version; it counts
// as internal under its own name.
func RowOf(code string) Row {
	if r, ok := table[code]; ok {
		return r
	}
	return Row{Code: code, Public: code, Status: table[Internal].Status}
}
