// Keeps the names beside a picture in view when the picture is scrolled.
function gpipePin(chart) {
  'use strict';
  var svg = chart.querySelector(':scope>svg'), side = svg && svg.querySelector('.side');
  if (!side) { return; }
  // Same as in `canvas.rs`.
  var LEFT = 70;
  function each(what, act) { Array.prototype.forEach.call(svg.querySelectorAll(what), act); }
  // It also covers the part that is scrolled into the chart's padding.
  each('.side .ground', function (ground) {
    ground.setAttribute('x', -12);
    ground.setAttribute('width', ground.width.baseVal.value + 12);
  });
  function keep() {
    var wide = svg.getBoundingClientRect().width;
    // A replaced picture has no width.
    if (!wide) { return; }
    var x = chart.scrollLeft * svg.viewBox.baseVal.width / wide;
    side.setAttribute('x', x);
    // Hides names of ticks that would be below the names of rows.
    each('.axis text', function (name) {
      var shown = Number(name.getAttribute('x')) >= x + LEFT - 1 ? 'visible' : 'hidden';
      name.setAttribute('visibility', shown);
      name.previousElementSibling.setAttribute('visibility', shown);
    });
  }
  chart.addEventListener('scroll', keep);
  chart.addEventListener('zoomed', keep);
}
Array.prototype.forEach.call(document.querySelectorAll('.chart'), gpipePin);
