// Page-locked memory that a copy may still read or write: the host cannot touch it.
#pragma once

#include "world.h"

namespace sim::checks {

// An entry uses the range: until the host has waited for the entry, it may not write there, nor
// read what the entry writes.
void hold(World& world, const Access& access, const Use& use);
// Releases held ranges: those for which the host has waited; all in a range.
void release_held(World& world);
void release_held(World& world, const char* from, const char* to);

}  // namespace sim::checks
