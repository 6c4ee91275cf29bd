// The book's playground zooms its own pictures with this, too.
var gpipeZoom = (function () {
  'use strict';
  // Same as in `canvas.rs`.
  var LEFT = 70, RIGHT = 10, WIDE = 1200, DIGIT = 6.8, STROKED = 3;
  // Same as in `names.rs`: a size's class, a digit's width, the extra width of a W, and the free space.
  var SIZES = [['', 6.8, 0.5, 2], ['s', 5.2, 0.6, 2], ['t', 4.4, 0.6, 1]];
  function picture(chart) { return chart.querySelector(':scope>svg'); }
  function place(x, zoom) { return LEFT + (x - LEFT) * zoom; }
  function width(zoom) { return place(WIDE - RIGHT, zoom) + RIGHT; }
  // Round times, as in `ticks.rs` for the whole.
  function ticks(svg, end, zoom) {
    var axis = svg.querySelector('.axis'), level = Number(axis.querySelector('path').getAttribute('d').split(/[ v]/)[1]);
    var unit = end < 1e3 ? [1, '\u00b5s'] : end < 1e6 ? [1e3, 'ms'] : [1e6, 's'];
    var part = end / unit[0] / 8 / zoom * (1 - 1e-12), power = Math.floor(Math.log10(part)), base = Math.pow(10, power);
    var round = [1, 2, 5, 10].filter(function (round) { return round * base >= part; })[0], step = round * base;
    var digits = Math.max(0, round === 10 ? -power - 1 : -power);
    var html = '', last = Math.floor(end / unit[0] / step * (1 + 1e-12));
    for (var number = 0; number <= last; number += 1) {
      var x = place(LEFT + number * step * unit[0] / end * (WIDE - LEFT - RIGHT), zoom).toFixed(2);
      var label = number ? (number * step).toFixed(digits) + ' ' + unit[1] : '0';
      var anchor = Number(x) + DIGIT * label.length / 2 <= width(zoom) ? 'middle' : 'end';
      html += '<path class="tick" d="M' + x + ' ' + level + 'v5"/><text x="' + x + '" y="' + (level + 17) +
        '" text-anchor="' + anchor + '">' + label + '</text>';
    }
    axis.innerHTML = html;
  }
  function widen(svg, zoom) {
    var box = svg.viewBox.baseVal;
    svg.setAttribute('viewBox', '0 ' + box.y + ' ' + width(zoom) + ' ' + box.height);
    svg.style.setProperty('--zoom', width(zoom) / WIDE);
  }
  // Makes a chart over the same time show the same part as its leader.
  function follow(chart, svg, end, leader) {
    function all(what) { return Array.prototype.slice.call(svg.querySelectorAll(':scope>' + what)); }
    var dots = all('circle').map(function (dot) { return { dot: dot, x: dot.cx.baseVal.value }; });
    leader.addEventListener('zoomed', function () {
      var zoom = Number(leader.dataset.zoom);
      widen(svg, zoom);
      all('path').concat(all('.lane')).forEach(function (own) {
        own.setAttribute('transform', 'matrix(' + zoom + ' 0 0 1 ' + place(0, zoom) + ' 0)');
      });
      dots.forEach(function (own) { own.dot.setAttribute('cx', place(own.x, zoom)); });
      all('text').forEach(function (name) { name.setAttribute('x', width(zoom) - RIGHT - 4); });
      ticks(svg, end, zoom);
      chart.scrollLeft = leader.scrollLeft;
      chart.dataset.zoom = zoom;
      chart.dispatchEvent(new Event('zoomed'));
    });
    [[leader, chart], [chart, leader]].forEach(function (pair) {
      pair[0].addEventListener('scroll', function () { pair[1].scrollLeft = pair[0].scrollLeft; });
    });
  }
  // Zooms by buttons before the chart, keys and the wheel.
  function zoomable(chart) {
    var svg = picture(chart), end = Number(svg.dataset.end), buttons = chart.previousElementSibling.querySelectorAll('button');
    var zoom = 1, most = 64;
    var space = svg.namespaceURI, chunked = svg.querySelector('g.c0') !== null;
    function all(what) { return Array.prototype.slice.call(svg.querySelectorAll(what)); }
    var bars = all('g').map(function (bar) {
      var rect = bar.querySelector('rect'), full = bar.querySelector('title').textContent.split(':')[0];
      var name = chunked ? full : full.replace(/^\d+/, '');
      return { bar: bar, rect: rect, name: name, more: 0, x: rect.x.baseVal.value, width: rect.width.baseVal.value };
    });
    var actions = bars.filter(function (item) { return !item.bar.classList.contains('A'); });
    function digits(item) { return item.name.match(/\d*$/)[0].length; }
    var longest = actions.reduce(function (most, item) { return Math.max(most, digits(item)); }, 0);
    actions.forEach(function (item) { item.more = longest - digits(item); });
    var lanes = all('.lane').map(function (lane) { return { lane: lane, width: lane.width.baseVal.value }; });
    var ends = all('.end').map(function (line) {
      return { line: line, x: parseFloat(line.getAttribute('d').slice(1)) };
    });
    function fits(item, size) {
      var digits = item.name.length + item.more + (item.name.indexOf('W') < 0 ? 0 : size[2]);
      return digits * size[1] + size[3] < item.width * zoom;
    }
    // Returns the largest size in which at least nine of ten of the names that fit at all fit.
    function fitting() {
      var counts = SIZES.map(function (size) {
        return actions.filter(function (item) { return fits(item, size); }).length;
      });
      return SIZES.filter(function (_, at) { return 10 * counts[at] >= 9 * counts[2]; })[0];
    }
    function draw(item, size) {
      var x = place(item.x, zoom), wide = item.width * zoom;
      item.rect.setAttribute('x', x);
      item.rect.setAttribute('width', wide);
      item.rect.classList.toggle('n', wide < STROKED);
      var text = item.bar.querySelector('text');
      if (!fits(item, size)) { if (text) { text.remove(); } return; }
      if (!text) {
        text = item.bar.appendChild(document.createElementNS(space, 'text'));
        text.setAttribute('y', Number(item.rect.getAttribute('y')) + 16);
      }
      text.textContent = item.name;
      text.setAttribute('class', size[0]);
      text.setAttribute('x', x + wide / 2);
    }
    function pixels() { return svg.getBoundingClientRect().width / width(zoom); }
    function left() { return svg.getBoundingClientRect().left; }
    // Keeps the point at `at`, pixels from the window's left edge, in place.
    function set(next, at) {
      next = Math.min(Math.max(next, 1), most);
      var held = (at - left()) / pixels(), before = zoom;
      if (next === before) { return; }
      zoom = next;
      widen(svg, zoom);
      var size = fitting();
      bars.forEach(function (item) { draw(item, size); });
      lanes.forEach(function (own) { own.lane.setAttribute('width', own.width * zoom); });
      ends.forEach(function (own) { own.line.setAttribute('transform', 'translate(' + (place(own.x, zoom) - own.x) + ' 0)'); });
      ticks(svg, end, zoom);
      chart.scrollLeft += left() + (LEFT + (held - LEFT) / before * zoom) * pixels() - at;
      chart.classList.toggle('zoomed', zoom > 1);
      chart.dataset.zoom = zoom;
      chart.dispatchEvent(new Event('zoomed'));
    }
    function middle(element) {
      var box = element.getBoundingClientRect();
      return (box.left + box.right) / 2;
    }
    // Zooms about the chosen action, if it is in view.
    function by(factor) {
      var box = chart.getBoundingClientRect(), own = svg.querySelector('.frame:not(.twin)');
      var at = own ? middle(own) : box.left;
      set(zoom * factor, at > box.left && at < box.right ? at : middle(chart));
    }
    var steps = { '+': 2, '=': 2, '-': 0.5, '0': 0 };
    Array.prototype.forEach.call(buttons, function (button) {
      button.addEventListener('click', function () { by(steps[button.dataset.step]); });
    });
    chart.addEventListener('keydown', function (event) {
      if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in steps)) { return; }
      by(steps[event.key]);
      event.preventDefault();
    });
    chart.addEventListener('wheel', function (event) {
      if (!event.ctrlKey) { return; }
      set(zoom * Math.exp(-event.deltaY / 200), event.clientX);
      event.preventDefault();
    }, { passive: false });
    var grip = null;
    chart.addEventListener('pointerdown', function (event) {
      if (event.pointerType !== 'mouse' || event.button !== 0 || zoom === 1) { return; }
      grip = event.clientX + chart.scrollLeft;
      chart.setPointerCapture(event.pointerId);
    });
    chart.addEventListener('pointermove', function (event) {
      if (grip !== null) { chart.scrollLeft = grip - event.clientX; }
    });
    chart.addEventListener('lostpointercapture', function () { grip = null; });
  }
  // Pictures give the end of their time axis; those of actions have buttons before them.
  var first = null;
  Array.prototype.forEach.call(document.querySelectorAll('.chart'), function (chart) {
    var svg = picture(chart), end = svg && Number(svg.dataset.end), group = chart.previousElementSibling;
    if (!end) { return; }
    if (group && group.classList.contains('zoom')) {
      first = first || chart;
      zoomable(chart);
    } else if (first) { follow(chart, svg, end, first); }
  });
  return zoomable;
})();
