// What is beside a picture stays in view when the picture is scrolled.
function gpipePin(chart) {
  'use strict';
  var svg = chart.querySelector(':scope>svg'), side = svg && svg.querySelector('.side');
  if (!side) { return; }
  // As `canvas.rs` has it.
  var LEFT = 70;
  function each(what, act) { Array.prototype.forEach.call(svg.querySelectorAll(what), act); }
  // It also covers what is scrolled into the chart's padding.
  each('.side .ground', function (ground) {
    ground.setAttribute('x', -12);
    ground.setAttribute('width', ground.width.baseVal.value + 12);
  });
  function keep() {
    var wide = svg.getBoundingClientRect().width;
    // A picture that another one took the place of has none.
    if (!wide) { return; }
    var x = chart.scrollLeft * svg.viewBox.baseVal.width / wide;
    side.setAttribute('x', x);
    // The tick of a name that would stand below the names of rows is covered by these.
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
