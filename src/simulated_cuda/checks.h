// Checks that a GPU does not make: which stream may read and write which memory, and when.
// (checks/)
#pragma once

#include "capture.h"

namespace sim::checks {

// An entry is about to be submitted. Throws if it may use memory too early or too late.
void submitted(Stream& stream, Entry& entry);
// A thread adds something other than an entry to a capture.
void captured(Stream& stream, const char* what);
// A point was recorded in a stream; a stream waits for a point.
void recorded(Stream& stream, Point& point);
void waited(Stream& stream, Point& point);
// The host has waited for a point. A query that happens to find it over is no wait: counting it
// would hide a missing wait.
void host_waited(Point& point);

// Memory was handed out to a stream; was given back; is used by a stream.
void taken(const void* address, size_t size, Stream& stream);
void freed(const void* address, size_t size);
void used_by(const void* address, Stream& stream);

// The same for page-locked memory. The host may not touch it while it is being copied.
void locked_taken(const void* address, size_t size);
void locked_freed(const void* address, size_t size);

// The calling thread begins to capture on a device; ends the capture.
void capture_began(const Capture& capture);
void capture_ended(const Capture& capture);

// For tests of the checks: forgets an expected finding.
void forget();

}  // namespace sim::checks
