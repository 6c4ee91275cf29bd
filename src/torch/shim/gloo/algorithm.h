// A stand-in (see context.h). What c10d's header needs of this one: nothing.
#pragma once
