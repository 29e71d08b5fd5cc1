// Whether pairs of nodes are edges.
#pragma once

#include <cstdint>

#include "core/csr.h"

namespace glt {

// out[i] = 1 if center[i] has an edge with neighbor[i], else 0; each row is scanned until the edge is found. Throws
// std::out_of_range, naming the first offender as `name`[i], when a centre is outside the graph or has no row here.
void has_edges(const CsrView& csr, const int64_t* center, const int64_t* neighbor, int64_t n, uint8_t* out,
               const char* name);

}  // namespace glt
