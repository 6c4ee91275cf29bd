// What a GPU does not check: who may read and write what, and when. (checks/)
#pragma once

#include "capture.h"

namespace sim::checks {

// An entry is about to be submitted. Throws where it may use memory too early or too late.
void submitted(Stream& stream, Entry& entry);
// A thread puts something into a capture that is no entry.
void captured(Stream& stream, const char* what);
// A point was recorded in a stream; a stream waits for a point.
void recorded(Stream& stream, Point& point);
void waited(Stream& stream, Point& point);
// The host has waited for a point. That a point happened to be over when the host looked is
// no wait: it would hide the one that is missing.
void host_waited(Point& point);

// Memory was handed out to, given back by, is used by a stream.
void taken(const void* address, size_t size, Stream& stream);
void freed(const void* address, size_t size);
void used_by(const void* address, Stream& stream);

// The same of page-locked memory. While a copy of it is under way, the host may not touch it.
void locked_taken(const void* address, size_t size);
void locked_freed(const void* address, size_t size);

// The calling thread captures on a device from now on; no longer.
void capture_began(const Capture& capture);
void capture_ended(const Capture& capture);

// For tests of the checks: what was found was meant to be. Nothing was found yet.
void forget();

}  // namespace sim::checks
