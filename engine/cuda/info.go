package cuda

import "patchbay/engine/cuda/driver"

// Info describes a device.
type Info = driver.Info

// ErrNotOpened is in the chain of an error that says that the driver's library is missing or too old.
var ErrNotOpened = driver.ErrNotOpened
